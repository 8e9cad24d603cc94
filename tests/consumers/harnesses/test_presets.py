"""What every preset keeps: its real CLI in a real runtime, against the scripted engine, the only stand-in here, for the model."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from consumers.harnesses.base import harness_of
from consumers.runtimes.process import ProcessRuntime
from polar.scripted.faults import Status
from polar.scripted.tokenizer import Tokenizer
from polar.types.errors import InputError
from polar.types.task import AgentSpec
from tests.consumers.harnesses.conftest import KEY, model, samples, worked
from tests.consumers.harnesses.specimens import PRESETS, Specimen

pytestmark = pytest.mark.parametrize("preset", PRESETS, ids=str)


async def test_it_works_with_its_tools_and_its_log_and_transcript_are_kept(
    preset: Specimen, runtime: ProcessRuntime, tmp_path: Path
) -> None:
    await runtime.write_file("a.txt", b"this is wrong\n")
    async with model(tmp_path, preset.turns) as (access, record):
        launch, result = await worked(runtime, access, "Mend the text.", preset.harness, settings=preset.settings)
    assert result.exit_code == 0, result.tail
    assert "Mended." in result.log.read_text()
    assert await runtime.read_file("c.txt", 100) == b"this is right\n"
    assert len(samples(record)) == preset.calls
    transcript = (await runtime.read_file(launch.keep["agent_transcript"], 10**6)).decode()
    for said in ("Mend the text.", "Mended.", str(runtime.home)):
        assert said in transcript


async def test_an_instruction_of_a_mebibyte_arrives_whole_whatever_it_looks_like(
    preset: Specimen, runtime: ProcessRuntime, tmp_path: Path
) -> None:
    instruction = '--help @a.txt\n/compact\n!ls "$HOME" é\n' + "word " * 209_000 + "end."
    assert 1_000_000 < len(instruction.encode()) <= 1024 * 1024
    async with model(tmp_path, [{"text": "Done."}]) as (access, record):
        _, result = await worked(runtime, access, instruction, preset.harness)
    assert result.exit_code == 0, result.tail
    tokenizer = Tokenizer()
    assert any(instruction in tokenizer.decode(call["prompt_token_ids"]) for call in samples(record))


async def test_a_model_that_refuses_ends_it_with_an_exit_code_and_the_reason(
    preset: Specimen, runtime: ProcessRuntime, tmp_path: Path
) -> None:
    async with model(tmp_path, preset.turns, Status(401, times=100)) as (access, _):
        _, result = await worked(runtime, access, "Mend the text.", preset.harness)
    assert result.exit_code not in (0, None)
    assert "401" in result.log.read_text()


async def test_the_key_is_on_no_command_line_and_in_no_file(
    preset: Specimen, runtime: ProcessRuntime, tmp_path: Path
) -> None:
    async with model(tmp_path, preset.turns) as (access, _):
        launch, _ = await worked(runtime, access, "Mend the text.", preset.harness)
    assert KEY not in " ".join(launch.command)
    files = [path for path in runtime.logs.parent.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    assert len(files) > 3
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("wrong", [0, -1, "big", True, None, [], 1.5])
def test_a_setting_that_it_does_not_have_or_cannot_be_is_refused_by_name(preset: Specimen, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"agent\.settings\.speed: .* has no such setting"):
        harness_of(AgentSpec(harness=preset.harness, settings={"speed": 1}))
    for name in preset.settings:
        with pytest.raises(InputError, match=rf"agent\.settings\.{name}"):
            harness_of(AgentSpec(harness=preset.harness, settings={name: wrong}))
