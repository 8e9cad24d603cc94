"""Each question of docs/sql.md, asked of a run whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from analytics.queries import cookbook, query
from analytics.queries.query import Reader
from tests.analytics.known_run import known_run
from tests.analytics.story import NOON, write
from topics.environment.settings import Settings

USE = '[{"id":"use-1","type":"function","function":{"name":"list_files","arguments":"{\\"path\\": \\".\\"}"}}]'
READ = (False, "read", None, None)


def at(seconds: float) -> datetime:
    """An instant of the run."""
    return datetime.fromtimestamp(NOON / 1000 + seconds, UTC)


KNOWN: dict[str, list[tuple[Any, ...]]] = {
    "Reward by harness": [
        ("claude_code", 1, 1, 1.0, 0.0),
        ("shell", 3, 2, 1.0, 0.0),
        ("external", 2, 1, 0.5, 0.0),
        ("pi", 4, 2, 0.5, 0.5),
    ],
    "How far each run is": [
        ("day", 1, 1, 1, 1.0, 26, at(118)),
        (None, 3, 7, 4, 0.5, 100, at(80)),
        ("night", 1, 2, 2, 1.0, 40, at(61)),
    ],
    "How a run goes, version by version": [(8, 1, 1.0, 0.0, 0.0, 14 / 26, None, {})],
    "How each task went": [
        ("mend", 4, 1, 1, 1, 0.5, 130, 25_000.0),
        ("parse", 2, 2, 0, 0, 1.0, 40, 20_500.0),
        ("own", 2, 1, 0, 0, 0.5, 10, 10_000.0),
        ("talk", 1, 1, 0, 0, 1.0, 30, 18_000.0),
        ("torn", 1, 0, 0, 0, None, 0, None),
    ],
    "How sessions ended, and the cause": [
        ("COMPLETED", None, None, None, 5, None),
        (None, None, None, None, 3, None),
        ("FAILED", "run", "agent", "exit_code", 1, "the harness exited with 1"),
        ("TIMED_OUT", "run", "budget", "timeout", 1, "its 10 s are over"),
    ],
    "What runs now, and for how long": [
        ("mend.3", 1, "pi", ANY),
        ("own.1", 1, "external", ANY),
        ("torn.0", 2, "shell", ANY),
    ],
    "The transcript of one session": [
        (1, "system", "You mend code.", None),
        (1, "user", "Mend it.\n[image_url]", None),
        (1, "assistant", None, USE),
        (2, "tool", "a.py", None),
        (2, "assistant", "All tests pass.", None),
        (3, "user", "Mend it. (Shortened.)", None),
        (3, "assistant", "Done.", None),
    ],
    "The whole conversation of one call": [
        (0, "system", "You mend code.", None),
        (1, "user", "Mend it. (Shortened.)", None),
        (2, "assistant", "Done.", None),
    ],
    "Sessions in which something was said": [("talk.0", 1, 2)],
    "Tools that agents call": [("claude_code", "list_files", 1)],
    "Calls and tokens of each session": [
        ("mend.0", 4, 40, 170, 90 / 170),
        ("mend.1", 5, 40, 220, 120 / 220),
        ("mend.2", 4, 40, 260, 180 / 260),
        ("talk.0", 3, 30, 100, 0.4),
        ("parse.0", 2, 20, 70, 30 / 70),
        ("parse.1", 2, 20, 70, 30 / 70),
        ("mend.3", 1, 10, 20, 0.0),
        ("own.0", 1, 10, 20, 0.0),
    ],
    "The calls of one session, in order": [
        (1, 1, "main", "answered", 20, 10, 500, None, "mend.1-1-0"),
        (2, 1, "main", "answered", 50, 10, 500, "mend.1-1-0", "mend.1-1-1"),
        (3, 1, "title", "answered", 20, 10, 500, None, "mend.1-1-2"),
        (4, 1, "main", "disowned", 110, 10, 500, "mend.1-1-1", "mend.1-1-3"),
        (5, 1, "main", "failed", 20, 0, 500, None, "mend.1-1-4"),
    ],
    "Calls besides the main work, and their cost": [("pi", "title", 1, 10, 500.0)],
    "Calls without an answer, and calls whose answer nobody received": [
        ("disowned", None, 1, at(7.5)),
        ("failed", "overloaded", 1, at(8.5)),
    ],
    "How calls were sampled": [("default", "unknown", False, "unknown", 17, 170)],
    "How much of the work is one conversation": [
        ("external", 1, 0, 1, 0.0),
        ("claude_code", 3, 1, 2, 1 / 3),
        ("pi", 14, 6, 3, 6 / 14),
        ("shell", 4, 2, 2, 0.5),
    ],
    "Where conversations branch, and why": [("claude_code", "edited_history", 1, "talk.0")],
    "Slow stages: waiting time and working time": [
        ("evaluate", 6, 1000.0, 1000.0, 3000.0, 3000.0),
        ("init", 10, 1000.0, pytest.approx(21_600), 2000.0, pytest.approx(2550)),
        ("run", 9, 1000.0, pytest.approx(1600), 10_000.0, 10_000.0),
    ],
    "Speed of the engine by minute": [
        (at(100), "default", 3, 30, 500.0),
        (at(40), "default", 5, 50, 500.0),
        (at(-20), "default", 12, 120, 500.0),
    ],
    "Groups that teach nothing, since all their rewards are equal": [("parse", 2, 1.0), ("talk", 1, 1.0)],
    "GRPO's advantage of each sample": [
        ("mend.0", 1.0, 1.0),
        ("mend.1", 0.0, -1.0),
        ("own.0", 0.5, None),
        ("parse.0", 1.0, None),
        ("parse.1", 1.0, None),
        ("talk.0", 1.0, None),
    ],
    "Reward by a field of the task's metadata": [("demo", 6, 0.7), ("other", 1, 1.0)],
    "Sampled tokens that can't be trained, by reason": [
        ("side_call", 10),
        ("undelivered", 10),
        ("filtered_grammar", 4),
    ],
    "The tokens of one trace": [
        *((n, 100 + n, *READ) for n in range(20)),
        *((20 + n, 200 + n, True, None, -0.5, 7) for n in range(10)),
        *((30 + n, 100 + n, *READ) for n in range(20)),
        *((50 + n, 200 + n, True, None, -0.5, 7) for n in range(4)),
        *((54 + n, 204 + n, True, None, -0.5, 8) for n in range(6)),
    ],
    "How sure the model is, by version": [
        (7, 154, -0.5, pytest.approx(1.6487, abs=1e-4)),
        (8, 12, -0.5, pytest.approx(1.6487, abs=1e-4)),
    ],
    "The least likely tokens that are trained": [("mend.0", "mend.0/mend.0-2-2", 20 + n, n, -0.5) for n in range(3)],
    "Which weights were published, and what they sampled": [
        (0, 7, None, False, 19, 194),
        (1, 8, None, False, 2, 16),
        (2, 6, "large", True, 0, 0),
    ],
    "How stale trained tokens were at delivery": [(0, 4, 102), (1, 4, 64)],
    "Recorded logprobs against those of a second reading": [
        ("default", 7, 1, 19, 0.25, 0.25, 0.25, 0.25),
        ("default", 8, 1, 6, 0.0, 0.0, 0.0, 0.0),
    ],
    "Traces that an engine scored otherwise": [("talk.0/talk.0-1-1", "default", 19, 19, 0.25, 0.1)],
    "Attempts that were lost, and on which worker": [
        (None, None, 1, 0, ["torn.0"]),
        ("worker-0", "left", 1, 10, ["mend.0"]),
    ],
    "Processes, and which of them ended without a word": [
        ("proxy", "right", "proxy-1", [], 0, at(400), False),
        ("worker", "left", "worker-0", ["default"], 2, at(10), True),
        ("worker", "right", "worker-1", ["default"], 22, at(91), False),
        ("worker", "left", "worker-2", ["default"], 0, at(395), False),
    ],
    "Slots of each pool and stage": [("default", "init", 4, 4), ("default", "run", 8, 5)],
    "What waits for a person": [("proxy", "right", "no engine answers", at(400))],
    "Errors by cause": [
        ("call", "run", None, "overloaded", 1, at(9)),
        ("session", "run", "agent", "exit_code", 1, at(18)),
        ("session", "run", "budget", "timeout", 1, at(19)),
        ("stage", "init", "infra", "image", 1, at(132)),
    ],
    "Records that nobody could process, and that weren't sent again": [(1, "polar.tasks", "fanout", None, "not JSON")],
    "Requests that the proxy refused": [("mend.1", "POST", "/foo", 404, "not_found", 5)],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    settings = Settings(data=tmp_path_factory.mktemp("known"))
    write(settings.lake_folder, known_run())
    with query.connect(settings) as reader:
        yield reader


def test_every_question_has_a_title_of_its_own_and_a_known_answer() -> None:
    titles = [title for title, _ in cookbook.questions()]
    assert len(titles) >= 25
    assert titles == list(KNOWN)


@pytest.mark.parametrize(("title", "sql"), cookbook.questions(), ids=[title for title, _ in cookbook.questions()])
def test_a_question_has_its_known_answer(run: Reader, title: str, sql: str) -> None:
    assert list(run.ask(sql).rows()) == KNOWN[title]


def test_the_page_has_the_questions() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
    _, _, rest = page.partition("<!-- questions -->\n")
    assert rest.partition("<!-- /questions -->")[0] == cookbook.document(), "docs/sql.md is older than the questions"
