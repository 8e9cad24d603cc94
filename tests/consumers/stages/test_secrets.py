"""A harness in the runtime `process` runs as the worker's user, so it can read the fleet's signing secrets: what is kept of it has none.

`polar worker` is a process of its own, as on a host: it is the command that names the files whose secrets are replaced.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import pytest

from tests.consumers.stages.coordinating import PATIENCE_S, Coordinator, shell
from topics.environment.keys import read_keys_file
from topics.environment.redaction import SECRET_SHOWN
from topics.environment.settings import Settings

pytestmark = pytest.mark.contract

COMMAND = """
git init -q
cat {keys}
echo "in words: $(tr -d '\\n' < {keys})" >&2
base64 -w 0 {keys}
cp {keys} leaked.json
exit 3
"""


async def test_of_a_keys_file_that_a_harness_shows_nothing_is_kept(
    settings: Settings, coordinator: Coordinator, tmp_path: Path
) -> None:
    (secret,) = read_keys_file(settings.keys_path).values()
    log = tmp_path / "worker.log"
    names = ("kafka", "namespace", "data", "replication", "min_insync", "proxy_url", "trust_tasks")
    variables = {f"POLAR_{name.upper()}": str(getattr(settings, name)) for name in names}
    with log.open("wb") as output:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "polar.cli", "worker", "init", "run", "evaluate"),
            env={**os.environ, **variables},
            stdout=output,
            stderr=output,
        )
    try:
        git = {"prepare": [{"type": "exec", "command": "git init -q"}]}
        evaluator = {"strategy": "test_on_output", "config": {"test_command": "cat leaked.json; exit 1"}}
        task = shell("teller", COMMAND.format(keys=settings.keys_path), runtime=git, evaluator=evaluator)
        await coordinator.evaluated(task)
    finally:
        worker.terminate()
        async with asyncio.timeout(PATIENCE_S):
            await worker.wait()
    facts = b"".join(msgspec.json.encode(fact) for fact in coordinator.facts)
    kept = {str(path): path.read_bytes() for path in (settings.data / "blobs").rglob("*") if path.is_file()}
    everything = {"the worker's log": log.read_bytes(), "facts": facts, **kept}
    assert [name for name, data in everything.items() if secret.encode() in data] == []
    assert sum(data.count(SECRET_SHOWN.encode()) for data in kept.values()) >= 5, everything
