"""Polar from Python, on the system that this folder shares: the page of the docs and the notebook, cell by cell in a running event loop."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from polar import Client, Session, load_settings
from tests.acceptance.up.running import Up
from tests.acceptance.up.test_sessions import sampled, trained
from tests.notebooks import cells_of, run_cells
from topics.types.session import Status

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "examples" / "first_rollout.ipynb"


@pytest.fixture
def _finds_it(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page says of a user's shell."""
    monkeypatch.setenv("POLAR_DATA", str(up.data))
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("_finds_it")
async def test_the_snippets_of_the_page_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    await run_cells(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:2]) == ["sea.0 COMPLETED 1.0", "sea.1 COMPLETED 1.0"]
    assert lines[2] == "COMPLETED 1.0"
    assert len(lines) == 3 + 3 * 4 + 3 * 2
    # The scripted engine answers filler.
    assert all(re.fullmatch(r"agent-\w+\.[0-3] What is 6 times \d\? [01]\.0 None", line) for line in lines[3:15])
    assert sorted(line.split()[0] for line in lines[15:]) == [f"sea-{n}.{index}" for n in range(3) for index in (0, 1)]


@pytest.mark.usefixtures("_finds_it")
async def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    await run_cells(list(cells_of(NOTEBOOK)))
    assert "reward" in capsys.readouterr().out


async def test_agents_have_the_tokens_that_were_sampled_and_their_own_errors(up: Up) -> None:
    def agent(session: Session, number: int) -> float:
        with session.openai() as llm:
            llm.chat.completions.create(model="any", messages=[{"role": "user", "content": f"number {number}"}])
        if number == 1:
            raise ZeroDivisionError("its own")
        return 0.25

    good, bad = await Client(load_settings(up.data)).run(agent, [0, 1], run="functions")
    for each in (good, bad):
        assert each.trajectory is not None
        assert each.session_id is not None
        assert (each.trajectory.status, each.trajectory.run) == (Status.COMPLETED, "functions")
        assert trained(each.trajectory) == await asyncio.to_thread(sampled, up, each.session_id)
    assert (good.reward, good.error, bad.reward, str(bad.error)) == (0.25, None, None, "its own")
