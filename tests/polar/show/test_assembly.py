"""A story out of records that the proxy's own deltas and the real builder made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polar.show.assembly import Log, MessageTree, assemble
from polar.show.story import CallStory, Story
from proxy.chat import Message
from tests.consumers.token_tree.transcripts import build_record
from tests.polar.show.recording import TASK, Recording, a_session, row, says
from topics.calls.resolver import Resolver
from topics.completions import CallRecord, Disowned, Emitted, Open, RefusedRequest
from topics.types.completion import Completion
from topics.types.session import Phase, SessionState
from topics.types.trajectory import Trajectory

OPEN = Open("t.0", 1, "claim")


def log_of(*records: CallRecord, claim: str | None = "claim") -> Log:
    log = Log(claim)
    for at, record in enumerate(records):
        log = log.take(record, at)
    return log


def story(recording: Recording, *, trajectory: Trajectory | None = None, session: SessionState | None = None) -> Story:
    return assemble(TASK, session or row(log_offset=0), log_of(OPEN, *recording.calls), trajectory)


def by_id(told: Story) -> dict[str, CallStory]:
    return {call.call.call_id: call for call in told.calls}


def words(told: Story, message: int | None) -> list[str]:
    """The conversation up to a message."""
    return [str(told.messages[index].body.get("content")) for index in told.path(message)]


def test_a_story_without_its_trajectory_says_of_calls_what_the_trajectory_will() -> None:
    recording = a_session()
    running = by_id(story(recording, session=row(Phase.RUNNING, log_offset=0, status=None)))
    ended = by_id(story(recording, trajectory=recording.build()))
    assert {name: call.call for name, call in running.items()} == {name: call.call for name, call in ended.items()}
    assert [ended[name].masked for name in ("c-look", "c-title", "c-done")] == [None, "side_call", None]
    assert {call.masked for call in running.values()} == {None}


def test_every_message_stands_once_and_an_edit_branches_where_it_was_made() -> None:
    told = story(a_session())
    bodies = [str(message.body) for message in told.messages]
    assert len(set(bodies)) == len(bodies) == 10
    calls = by_id(told)
    assert words(told, calls["c-done"].said)[:2] == ["be brief", "mend it"]
    assert words(told, calls["c-edit"].said) == ["be brief", "mend it", "looked", "again", "mended again"]
    assert words(told, calls["c-title"].said) == ["a title", "Mending"]
    assert calls["c-failed"].asked == calls["c-done"].said
    assert calls["c-failed"].said is None
    assert calls["c-done"].tools == ["bash", "edit"]
    assert told.tool_calls(calls["c-look"]) == ["bash"]


turns = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6)


@given(st.lists(turns, min_size=1, max_size=12))
def test_a_path_in_the_tree_is_what_the_resolver_expands(conversations: list[list[str]]) -> None:
    """Whatever is asked: prefixes of one another, repeated, branching inside what was answered."""
    recording = Recording()
    for number, turn in enumerate(conversations):
        messages: list[Message] = [says("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(turn)]
        recording.call(f"c{number}", messages, says("assistant", turn[0]))
    tree, resolver = MessageTree(), Resolver()
    for index, record in enumerate(recording.calls):
        resolver.add(record)
        asked, said = tree.add(record, index)
        found, at = [], asked
        while at >= 0:
            found.append(tree.messages[at].body)
            at = tree.messages[at].parent
        assert found[::-1] == resolver.messages(record.call_id)
        assert said is not None
        assert tree.messages[said].parent == asked
    keys = [(message.parent, str(message.body)) for message in tree.messages]
    assert len(set(keys)) == len(keys)


def test_the_newest_open_counts_and_the_first_record_of_a_call() -> None:
    first, second = a_session().calls[:2]
    before: list[Completion | Open] = [Open("t.0", 1, "old"), first]
    log = log_of(*before, OPEN, first, first, second, Disowned(second.call_id, "t.0", "claim", "hung_up"), claim="old")
    assert list(log.calls) == [first.call_id, second.call_id]
    assert log.disowned == {second.call_id: "hung_up"}
    assert log.others == 0
    assert log_of(OPEN, first, claim=None).is_open


def test_calls_of_another_claim_are_counted_and_those_after_build_are_late() -> None:
    first, second, *_ = a_session().calls
    told = assemble(TASK, row(), log_of(Open("t.0", 1, "other"), first), None)
    assert told.calls == []
    assert "1 calls of another claim" in " ".join(told.notes)
    log = log_of(
        OPEN, first, build_record(), second, Disowned(first.call_id, "t.0", "claim", "closed"), Emitted("t", "t.0")
    )
    assert log.late == {second.call_id}
    assert log.disowned == {}
    assert log.emitted_at == 5


def test_refused_requests_of_the_claim_are_told_apart_from_its_calls() -> None:
    recording = a_session()
    ours, others = (
        RefusedRequest("t.0", 1, claim, 5, "POST", "/foo", 404, "not_found", "nothing is served")
        for claim in ("claim", "x")
    )
    told = assemble(TASK, row(log_offset=0), log_of(OPEN, others, ours, *recording.calls), None)
    assert told.refused == [ours]
    assert [call.call for call in told.calls] == [call.call for call in story(recording).calls]


def test_calls_that_have_left_the_log_are_told_from_the_trajectory() -> None:
    recording = a_session()
    trajectory = recording.build()
    told = assemble(TASK, row(log_offset=0), log_of(*recording.calls[2:]), trajectory)
    calls = by_id(told)
    assert [call.number for call in told.calls] == [1, 2, 3, 4, 5]
    assert calls["c-look"].record is None
    assert calls["c-look"].call.sampled_tokens == 2
    assert "base c-look isn't among" in (calls["c-done"].gap or "")
    assert words(told, calls["c-done"].said)[-1] == "mended"
    assert any("first records have left" in note for note in told.notes)
    assert any(note.startswith("2 of its calls have left") for note in told.notes)


def test_notes_say_what_runs_what_was_before_and_what_is_gone() -> None:
    running = story(a_session(), session=row(Phase.RUNNING, status=None, attempt=3, past_claims=["x", "y"])).notes
    assert running[0].startswith("it is running: this is what there is so far")
    assert "2 earlier attempts; their calls are in the lake: polar sql" in running[1]
    assert "session_id = 't.0' AND attempt < 3" in running[1]
    assert "its trajectory has left Kafka" in story(a_session()).notes[0]
    assert story(a_session(), trajectory=a_session().build()).notes == []
