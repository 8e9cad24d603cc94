"""What is pi's own; `test_presets.py` has what every preset keeps."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from consumers.runtimes.process import ProcessRuntime
from tests.consumers.harnesses.conftest import model, samples, worked
from tests.consumers.harnesses.specimens import PI


async def test_what_pi_keeps_of_a_conversation_only_grows(runtime: ProcessRuntime, tmp_path: Path) -> None:
    """So each prompt begins with the prompt before it and what was sampled then: one trace."""
    parallel = {
        "text": "Now both at once.",
        "calls": [
            {"name": "write", "arguments": {"path": "b/new.txt", "content": "made\n"}},
            {"name": "bash", "arguments": {"command": "echo $PWD"}},
        ],
    }
    await runtime.write_file("a.txt", b"this is wrong\n")
    async with model(tmp_path, [parallel, *PI.turns]) as (access, record):
        await worked(runtime, access, "Mend the text.", "pi")
    assert await runtime.read_file("b/new.txt", 100) == b"made\n"
    calls = samples(record)
    assert len(calls) == PI.calls + 1
    for before, after in itertools.pairwise(calls):
        said = before["prompt_token_ids"] + before["token_ids"]
        assert after["prompt_token_ids"][: len(said)] == said


async def test_an_instruction_is_one_text_to_pi_and_no_command_of_its_own(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    instruction = '/compact\n!ls "$HOME"\n@a.txt'
    await runtime.write_file("a.txt", b"never read")
    async with model(tmp_path, [{"text": "Done."}]) as (access, _):
        launch, _ = await worked(runtime, access, instruction, "pi")
    lines = (await runtime.read_file(launch.keep["agent_transcript"], 10**6)).decode().splitlines()
    messages = [entry["message"] for entry in map(json.loads, lines) if entry["type"] == "message"]
    (user,) = [message for message in messages if message["role"] == "user"]
    assert user["content"] == [{"type": "text", "text": instruction}]
