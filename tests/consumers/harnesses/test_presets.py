"""What every preset keeps: its real CLI in a real runtime, its model a scripted engine, the only stand-in here, behind a real proxy."""

from __future__ import annotations

import stat
from typing import Any

import pytest

from consumers.harnesses.base import harness_of
from consumers.runtimes.process import ProcessRuntime
from polar.scripted.faults import Status
from polar.scripted.tokenizer import Tokenizer
from tests.consumers.harnesses.conftest import CONTEXT, Model, Models, transcript_of, worked
from tests.consumers.harnesses.specimens import ALWAYS, PRESETS, Specimen, in_workspace
from topics.types.agent import AgentSpec
from topics.types.errors import InputError

on_each = pytest.mark.parametrize(
    "preset",
    [pytest.param(one, id=str(one), marks=() if one in ALWAYS else pytest.mark.harnesses) for one in PRESETS],
)


def prompts(model: Model) -> list[str]:
    """What the engine was asked, as its template rendered it."""
    tokenizer = Tokenizer()
    return [tokenizer.decode(call["prompt_token_ids"]) for call in model.samples()]


@on_each
async def test_it_works_with_its_tools_and_its_log_and_transcript_are_kept(
    preset: Specimen, runtime: ProcessRuntime, model: Models
) -> None:
    await runtime.write_file("a.txt", b"this is wrong\n")
    async with model(in_workspace([*preset.turns, preset.end], runtime.workspace)) as served:
        launch, result = await worked(
            runtime, served.access, "Mend the text.", preset.harness, settings=preset.settings
        )
    assert result.exit_code == 0, result.tail
    assert "Mended." in result.log.read_text()
    assert await runtime.read_file("c.txt", 100) == b"this is right\n"
    assert len(served.samples()) == len(preset.turns) + 1
    transcript = await transcript_of(runtime, launch)
    for said in ("I look first.", "Mended.", str(runtime.home)):
        assert said in transcript
    # The key that a run mints is on no command line and in no file of the runtime.
    assert served.access.key not in " ".join(launch.command)
    files = [path for path in runtime.logs.parent.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    assert len(files) > 3
    assert [path for path in files if served.access.key.encode() in path.read_bytes()] == []


@on_each
@pytest.mark.filterwarnings("ignore:Sending a large body")  # aiohttp's word on what the proxy sends to its engine
async def test_an_instruction_of_a_mebibyte_arrives_whole_whatever_it_looks_like(
    preset: Specimen, runtime: ProcessRuntime, model: Models
) -> None:
    instruction = '--help @b.txt\n/compact\n!ls "$HOME" é\n' + "word " * 209_000 + "Mend."
    assert 1_000_000 < len(instruction.encode()) <= 1024 * 1024
    roomy = {"context_window": CONTEXT} if "context_window" in preset.settings else {}
    async with model([preset.end]) as served:
        _, result = await worked(runtime, served.access, instruction, preset.harness, settings=roomy)
    assert result.exit_code == 0, result.tail
    assert instruction in prompts(served)[0]


@on_each
async def test_an_instruction_is_one_text_and_no_command_of_its_own(
    preset: Specimen, runtime: ProcessRuntime, model: Models
) -> None:
    mention = "" if preset.takes_mentions else "@a.txt"
    instruction = f'/compact\n!ls "$HOME"\n{mention} and Mend.'
    await runtime.write_file("a.txt", b"never read")
    async with model([preset.end]) as served:
        _, result = await worked(runtime, served.access, instruction, preset.harness)
    assert result.exit_code == 0, result.tail
    (prompt,) = prompts(served)
    assert instruction in prompt
    assert "never read" not in prompt


@on_each
async def test_a_model_that_refuses_ends_it_with_an_exit_code_and_the_reason(
    preset: Specimen, runtime: ProcessRuntime, model: Models
) -> None:
    async with model([preset.end], Status(400, times=100)) as served:
        _, result = await worked(runtime, served.access, "Mend the text.", preset.harness)
    assert result.exit_code not in (0, None)
    assert "an injected fault" in result.log.read_text()


@pytest.mark.parametrize("preset", PRESETS, ids=str)
@pytest.mark.parametrize("wrong", [0, -1, "big", True, None, [], 1.5])
def test_a_setting_that_it_does_not_have_or_cannot_be_is_refused_by_name(preset: Specimen, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"agent\.settings\.speed: .* has no such setting"):
        harness_of(AgentSpec(harness=preset.harness, settings={"speed": 1}))
    for name in preset.settings:
        with pytest.raises(InputError, match=rf"agent\.settings\.{name}"):
            harness_of(AgentSpec(harness=preset.harness, settings={name: wrong}))
