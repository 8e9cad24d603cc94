"""Every command of the README and of docs/, run on a demo's data as the pages say, and what it prints compared by shape.

The engine is the scripted one; that is what the pages say, too. `make demo` and `make test` are what CI itself runs; docs/sessions.md has
a test of its own, which needs another script.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.acceptance.up.console import Step, differs, steps, walk
from tests.acceptance.up.demos import DemoRun
from tests.acceptance.up.running import Up, environment
from topics.types.task import TaskRequest

pytestmark = pytest.mark.timeout(1000)

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
FIRST = "README.md"
"""The page that `make test` follows; the others are walked in tier hard."""
PAGES = [
    pytest.param(page, marks=() if page.name == FIRST else pytest.mark.hard, id=str(page.relative_to(ROOT)))
    for page in (README, *DOCS)
    if page.name != "sessions.md"
]
PAGE_S = 400.0
DEMO = re.compile(r"<!-- demo -->\n```\n(.*?)```", re.DOTALL)
STARTED_HERE = {"make install", ". .venv/bin/activate", "polar up"}
"""What the pages say before the rest, in blocks of `sh`: the fixture's work."""


def test_the_demo_prints_what_the_readme_shows(finished_demo: DemoRun) -> None:
    (shown,) = DEMO.findall(README.read_text())
    difference = differs(["…", *shown.splitlines(), "…"], finished_demo.output)
    assert difference is None, difference


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(page: Path, up: Up, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    found = [step for step in steps(page, ROOT) if not step.command.startswith("make ")]
    path = os.pathsep.join([str(Path(sys.executable).parent), environment()["PATH"]])
    settings = environment() | {"PATH": path, "POLAR_DATA": str(up.data)}
    differences = walk(found, folder=tmp_path, environment=settings, deadline_s=PAGE_S)
    assert not differences, "\n\n".join(differences)


def test_the_readme_s_programs_read_the_demo_and_run_an_agent(up: Up) -> None:
    reads, runs = (printed_by(each, up) for each in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    of_demo = [row for row in reads if row[0].startswith(("cache-", "calc-", "intervals-"))]
    assert len(of_demo) == 12
    assert all(int(tokens) > int(trained) > 0 for _, _, tokens, trained, _ in of_demo)
    assert [(reward, int(trained) > 0) for _, reward, trained in runs] == [("1.0", True)] * 4


def printed_by(program: str, up: Up) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment() | {"POLAR_DATA": str(up.data)},
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=True,
    )
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.pure
def test_the_readme_and_the_quickstart_are_walked() -> None:
    assert all(len(commands_of(name)) >= 8 for name in ("README.md", "docs/quickstart.md"))


def commands_of(name: str) -> list[Step]:
    return steps(ROOT / name, ROOT)


@pytest.mark.pure
@pytest.mark.parametrize("page", [README, ROOT / "docs" / "quickstart.md"], ids=lambda page: page.name)
def test_what_stands_outside_of_consoles_is_what_this_test_does_itself(page: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    said = {line.partition("#")[0].strip() for block in blocks for line in block.splitlines()}
    assert said <= STARTED_HERE


@pytest.mark.pure
def test_the_tasks_of_the_readme_are_the_example_and_one_of_a_cli() -> None:
    hello, mend = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    assert hello == (ROOT / "examples" / "hello" / "task.yaml").read_text()
    assert TaskRequest.model_validate(yaml.safe_load(mend)).agent.harness == "claude_code"


@pytest.mark.pure
@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda page: page.name)
def test_pages_name_what_exists(page: Path) -> None:
    named = set(
        re.findall(r"`((?:docs|examples|polar|tests|topics|consumers|analytics|proxy)/[\w./-]+)`", page.read_text())
    )
    trainers = "".join(file.read_text() for file in (ROOT / "polar" / "trainer").glob("*.py"))
    metrics = set(re.findall(r'"(polar/\w+)"', trainers))
    # `SampleQueue` counts by reason and unit. `Staleness` makes these names of its reasons, which are constants.
    counted = re.findall(r"\b(\w+_(?:group|sample))\b", trainers)
    counted += [f"{reason}_group" for reason in re.findall(r'^[A-Z]+ = "(\w+)"$', trainers, re.MULTILINE)]
    metrics |= {f"polar/{count}_total" for count in counted}
    assert not [path for path in sorted(named - metrics) if not (ROOT / path).exists()]
