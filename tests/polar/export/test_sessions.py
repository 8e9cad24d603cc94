"""Finished sessions as the exports read them: whole, selected, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from analytics.queries import query
from polar.export import sessions
from polar.export.sessions import ExportedSession, Selection
from tests.polar.export.talks import SEARCH, Talk, turns, write
from topics.environment.settings import Settings
from topics.types.completion import JUDGE
from topics.types.errors import InputError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / ".polar")


def found(settings: Settings, selection: Selection = Selection()) -> list[ExportedSession]:  # noqa: B008 - frozen
    with query.connect(settings) as reader:
        return list(sessions.read(reader, sessions.select(reader, selection)))


def ids(settings: Settings, selection: Selection) -> list[str]:
    with query.connect(settings) as reader:
        return [one.session_id for one in sessions.select(reader, selection)]


def test_a_session_is_whole(settings: Settings) -> None:
    talk = turns("t.0", 3, metadata=b'{"swe": {"repo": "a/b"}}', reward=0.5)
    talk.call([{"role": "user", "content": "is it good?"}], [9, 9], [8], kind=JUDGE)
    write(settings, [talk])
    (session,) = found(settings)
    assert session.trajectory == talk.trajectory()
    assert session.gap is None
    assert [call.call for call in session.calls] == session.trajectory.calls
    assert [call.record for call in session.calls] == talk.calls[:-1]
    last = session.calls[-1]
    assert [message["content"] for message in last.messages] == [
        "task 100",
        "answer 0",
        "go on 0",
        "answer 1",
        "go on 1",
    ]
    assert last.answer == {"role": "assistant", "content": "answer 2"}
    assert [call.tools for call in session.calls] == [[SEARCH]] * 3


def test_order_is_that_of_tasks_and_samples_whatever_the_log_s_and_the_portions(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settings, [turns(name, first=100 * n) for n, name in enumerate(("b.10", "a.1", "b.9", "a.0", "c.0"), 1)])
    wanted = ["a.0", "a.1", "b.9", "b.10", "c.0"]
    assert [one.trajectory.session_id for one in found(settings)] == wanted
    monkeypatch.setattr(sessions, "PORTION_SESSIONS", 2)
    assert [one.trajectory.session_id for one in found(settings)] == wanted
    monkeypatch.setattr(sessions, "PORTION_TOKENS", 1)
    assert [one.trajectory.session_id for one in found(settings)] == wanted


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (Selection(), ["a.0", "it's.0"]),
        (Selection(tasks=["a", "nobody"]), ["a.0"]),
        (Selection(tasks=["it's"]), ["it's.0"]),
        (Selection(run="night"), ["it's.0"]),
        (Selection(harness="pi"), ["a.0"]),
        (Selection(where="reward > 0.5 -- only good ones"), ["a.0"]),
        (Selection(where="reward > 2 OR true", run="night"), ["it's.0"]),
        (Selection(output="eval"), []),
    ],
    ids=str,
)
def test_a_selection(settings: Settings, selection: Selection, chosen: Sequence[str]) -> None:
    write(settings, [turns("it's.0", reward=0.0, run="night"), turns("a.0", reward=1.0, harness="pi")])
    assert ids(settings, selection) == chosen


def test_an_output_of_its_own(settings: Settings) -> None:
    write(settings, [turns("a.0")], output="eval")
    assert (ids(settings, Selection()), ids(settings, Selection(output="eval"))) == ([], ["a.0"])


@pytest.mark.parametrize("where", ["nonsense = 1", "true) UNION SELECT 1 --", "1 = 1; DROP VIEW sessions"])
def test_a_wrong_condition_is_refused(settings: Settings, where: str) -> None:
    write(settings, [turns("a.0")])
    with pytest.raises(InputError, match="SQL"):
        ids(settings, Selection(where=where))


def test_a_session_that_ended_twice_is_its_newest_end(settings: Settings) -> None:
    older, newer = turns("a.0", 3, reward=0.0), turns("a.0", 1, reward=1.0)
    newer.calls = [msgspec.structs.replace(call, call_id=f"{call.call_id}-again") for call in newer.calls]
    write(settings, [older, newer])
    (session,) = found(settings)
    assert session.trajectory == newer.trajectory()


def test_a_call_whose_record_or_base_is_missing_has_a_gap(settings: Settings) -> None:
    talk = turns("a.0", 2)
    whole = talk.trajectory()
    lost = Talk("a.0")
    lost.calls, lost.trajectory = talk.calls[1:], lambda: whole  # type: ignore[method-assign]
    write(settings, [lost])
    (session,) = found(settings)
    assert session.gap == "call a.0-0: the lake has no record of it"
    assert session.calls[1].gap == "call a.0-1: its base a.0-0 isn't among the calls of this claim before it"
    assert (session.calls[1].messages, session.calls[1].answer) == ([], None)
