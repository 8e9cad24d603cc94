"""The files of `polar export sft` in the code that reads and trains them: `datasets` 5.2.0 and TRL 1.16.0 (`requirements.txt`)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from examples.vllm_cpu.packages import variables
from examples.vllm_cpu.serve import PYTHON, ROOT
from tests.polar.cli.commands import polar
from tests.polar.export.talks import Talk, turns, write
from tests.vllm.exporters.packages import packages
from topics.environment.settings import Settings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

DEADLINE_S = 400.0
"""20 s of CPU time, nearly all of it for imports of torch and transformers; machines are busy."""
OTHER_TOOL = {
    "type": "function",
    "function": {"name": "edit", "parameters": {"properties": {"path": {"type": "string"}}}},
}


def with_parts() -> Talk:
    """A session whose messages and tools have another form than those of `turns`."""
    talk = Talk("parts.0")
    said = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "edit", "arguments": '{"path": "a"}'}}
    ]}  # fmt: skip
    asked = [{"role": "user", "content": [{"type": "text", "text": "edit a"}]}]
    talk.call(asked, [5, 6, 7], [8, 9], answer=said, tools=[OTHER_TOOL])
    talk.call(
        [*asked, said, {"role": "tool", "tool_call_id": "1", "content": "done"}],
        [5, 6, 7, 8, 9, 10],
        [11],
        tools=[OTHER_TOOL],
    )
    return talk


def test_the_files_load_and_train(tmp_path: Path, model_dir: Path) -> None:
    found = Settings(data=tmp_path / ".polar")
    write(found, [with_parts(), *(turns(f"t{number}.0", first=10 * number) for number in range(1, 6))])
    folders = []
    for layout in ("messages", "tokens", "parquet"):
        folders.append(tmp_path / layout)
        arguments = (
            "--data",
            str(found.data),
            "--out",
            str(folders[-1]),
            "--format",
            layout,
            "--split",
            "train=0.7,val=0.3",
        )
        assert polar("export", "sft", *arguments)[0] == 0
    # dill, which `datasets` hashes with, pickles modules by value unless `site-packages` is in their path.
    (tmp_path / "site-packages").symlink_to(packages())
    program = Path(__file__).with_name("check_sft.py")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", program, model_dir, *folders],
        cwd=ROOT,
        env=variables(tmp_path / "site-packages"),
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"[2-9] rows$", done.stdout), done.stdout
