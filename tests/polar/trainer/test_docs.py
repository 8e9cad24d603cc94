"""The Python of docs/trainer.md does what it says, as it stands there."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polar.settings import Settings, write_env_file
from tests.polar.trainer.writing import Writer, group

PAGE = Path(__file__).parents[3] / "docs" / "trainer.md"
BLOCKS = {
    section.partition("\n")[0]: block
    for section in PAGE.read_text().split("\n## ")
    for block in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
}
"""By the heading that each stands under."""
DEADLINE_S = 60.0
EXPECTED = {
    "The first loop": [
        f"math.{index} {reward} 5 tokens, 2 trained" for index, reward in ((2, None), (1, 0.0), (0, 1.0))
    ],
    "Groups": ["math [1.0, -1.0]"],
    "Checkpoints": ["step 0 math"],
    "Async": ["math [1.0, 0.0, None]"],
    "Evaluation": ["mean reward 0.50 of 2"],
    "Packing": ["(15,) 6 [0, 5, 10, 15]"],
}


@pytest.fixture
def folder(settings: Settings) -> Path:
    """Where a system's data lie: one trained group, one evaluated."""

    async def fill() -> None:
        async with Writer(settings) as trained, Writer(settings, "eval") as evaluated:
            await trained.write(group("math", [1.0, 0.0, None]))
            await evaluated.write(group("exam", [1.0, 0.0]))

    asyncio.run(fill())
    data = settings.data
    write_env_file(data / "polar.env", {"POLAR_KAFKA": settings.bootstrap, "POLAR_NAMESPACE": settings.namespace})
    return data


def start(folder: Path, block: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", block],
        cwd=folder,
        env={"POLAR_DATA": str(folder)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_each_block_says_what_is_expected(folder: Path) -> None:
    running = {section: start(folder, block) for section, block in BLOCKS.items()}
    said = {section: process.communicate(timeout=DEADLINE_S) for section, process in running.items()}
    assert {section: (out.splitlines(), error) for section, (out, error) in said.items()} == {
        section: (lines, "") for section, lines in EXPECTED.items()
    }


def test_a_checkpoint_is_gone_on_from(folder: Path) -> None:
    block = BLOCKS["Checkpoints"]
    outputs = [start(folder, block).communicate(timeout=DEADLINE_S) for _ in range(2)]
    assert outputs == [("step 0 math\n", ""), ("", "")]
