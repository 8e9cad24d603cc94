"""The Python of docs/trainer.md, docs/exporters.md and docs/ratios.md does what it says, as it stands there."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.polar.trainer.writing import Writer, group
from topics.contract import catalogue
from topics.environment.settings import Settings, write_env_file
from topics.log import admin

pytestmark = pytest.mark.hard

DOCS = Path(__file__).parents[3] / "docs"
AT_ONCE = 4
DEADLINE_S = 60.0


def blocks(page: str) -> dict[str, str]:
    """By the heading that each stands under."""
    return {
        section.partition("\n")[0]: block
        for section in (DOCS / page).read_text().split("\n## ")
        for block in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    }


EXPECTED = {
    "trainer.md": {
        "The first loop": [
            f"math.{index} {reward} 5 tokens, 2 trained" for index, reward in ((2, None), (1, 0.0), (0, 1.0))
        ],
        "What a trainer replays": ["None None"] * 3,
        "Groups": ["2 sequences, 10 tokens, 4 trained"],
        "Which groups are trained": ["math 3 of 3", "{}"],
        "Staleness": ["{'stale_token': 4, 'stale_group': 1}"],
        "Rollbacks": [],
        "Advantages": ["math.0 1.0 1.0 7", "math.1 -1.0 1.0 7"],
        "Checkpoints": ["step 0 math"],
        "Async": ["math [1.0, 0.0, None]"],
        "Evaluation": ["mean reward 0.50 of 2"],
        "Packing": ["[('math.0', 0), ('math.1', 0)] [0, 5, 10] [0, 1, 2, 3, 4, 0]"],
        "Images": ["math.0 []", "math.1 []"],
        "Submitting as you consume": ["math", "{}"],
    },
    "exporters.md": {
        "slime": ["[(0, 2, 1.0)]", "[(1, 2, -1.0)]"],
        "verl": ["(2, 16384) [2, 2]", "[[2], [2], []]"],
        "prime-rl": [f"[False, False, False, True, True] [0.0, 0.0, 0.0, {at}, {at}] 163 bytes" for at in (1.0, -1.0)],
        "NeMo Gym and NeMo RL": ["0 1.0 [[10, 0]]", "1 0.0 [[10, 1]]"],
        "SkyRL": ["['math_0', 'math_1'] [True, True] [1.0, 0.0]"],
        "TRL": [
            "[2, 2, 2] [1.0, 0.0, None]",
            "[(0, 1.0, 7), (0, -1.0, 7)]",
        ],
        "Tinker": [
            "[1, 2, 3, 10] [0.0, 0.0, 1.0, 1.0] [0.0, 0.0, 1.0, 1.0]",
            "[1, 2, 3, 10] [0.0, 0.0, 1.0, 1.0] [0.0, 0.0, -1.0, -1.0]",
        ],
        "OpenEnv": ["[[0, 0, 0, 1, 1]] 1.0", "[[0, 0, 0, 1, 1]] 0.0", "[] None"],
    },
    # How these calls were sampled isn't recorded.
    "ratios.md": {"What to do": ["{'unknown_temperature_group': 1}"]},
}


@pytest.fixture
def folder(settings: Settings) -> Path:
    """Where a system's data lie: one trained group, one evaluated."""

    async def fill() -> None:
        await admin.apply(settings, catalogue.FIXED, embedded=True)
        async with Writer(settings) as trained, Writer(settings, "eval") as evaluated:
            await trained.write(group("math", [1.0, 0.0, None]))
            await evaluated.write(group("exam", [1.0, 0.0]))

    asyncio.run(fill())
    data = settings.data
    write_env_file(data / "polar.env", {"POLAR_KAFKA": settings.bootstrap, "POLAR_NAMESPACE": settings.namespace})
    return data


def run(folder: Path, block: str) -> tuple[list[str], str]:
    """What it prints, and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=folder,
        env={"POLAR_DATA": str(folder)},
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("page", EXPECTED)
def test_each_block_says_what_is_expected(folder: Path, page: str) -> None:
    found = blocks(page)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = dict(zip(found, pool.map(lambda block: run(folder, block), found.values()), strict=True))
    assert said == {section: (lines, "") for section, lines in EXPECTED[page].items()}


def test_a_checkpoint_is_gone_on_from(folder: Path) -> None:
    block = blocks("trainer.md")["Checkpoints"]
    assert [run(folder, block) for _ in range(2)] == [(["step 0 math"], ""), ([], "")]
