from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from consumers.builders.base import Builder, BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from polar import registry
from polar.types.completion import CallOutcome, TokenDelta
from polar.types.errors import InputError, Kind, SessionError
from polar.types.session import Status
from polar.types.tokens import count, pack_ids, pack_logprobs
from polar.types.trajectory import Trajectory, expand
from tests.consumers.builders.transcripts import (
    Log,
    branches,
    build_record,
    completion,
    ids_of,
    line,
    lines,
    logprobs_for,
    parents,
)


def chain() -> Log:
    log = Log()
    log.call("a", "sys hi", "hello <end>")
    log.call("b", "sys hi hello <end> tool 1", "ok <end>")
    log.call("c", "sys hi hello <end> tool 1 ok <end> tool 2", "done <end>")
    return log


def test_a_conversation_that_only_grows_is_one_trace() -> None:
    built = chain().build()
    assert lines(built) == ["sys hi [hello <end>] tool 1 [ok <end>] tool 2 [done <end>]"]
    assert parents(built) == {"a": None, "b": "a", "c": "b"}
    assert branches(built) == {"a": "root", "b": None, "c": None}
    assert built.stats.tokens == 12
    assert (built.stats.sampled_tokens, built.stats.trainable_tokens, built.stats.masked_tokens) == (6, 6, {})
    assert built.stats.drift == {"clean": 2}


def test_logprobs_stand_at_their_own_tokens() -> None:
    built = chain().build()
    expanded = expand(built, built.traces[0])
    for span in expanded.spans:
        wanted = logprobs_for(span.call.call_id, [0] * (span.end - span.start))
        assert expanded.logprobs[span.start : span.end].tolist() == wanted
    assert not expanded.logprobs[expanded.loss_mask == 0].any()


def test_per_request_makes_one_trace_per_call_over_the_same_tree() -> None:
    built = chain().build(PerRequest())
    assert lines(built) == [
        "sys hi [hello <end>]",
        "sys hi hello <end> tool 1 [ok <end>]",
        "sys hi hello <end> tool 1 ok <end> tool 2 [done <end>]",
    ]
    assert built.nodes == chain().build().nodes


def test_full_prompts_after_a_proxy_restart_merge_as_deltas_do() -> None:
    log = chain()
    whole = TokenDelta(rest=pack_ids(ids_of("sys hi hello <end> tool 1 ok <end> tool 2")))
    log.calls[2] = msgspec.structs.replace(log.calls[2], prompt=whole)
    assert log.build() == chain().build()


def test_two_continuations_of_one_answer_are_a_fork_and_the_answer_is_trained_once() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool 1", "one")
    log.call("c", "sys hi hello tool 2 more", "two")
    built = log.build()
    assert lines(built) == ["sys hi [hello] tool 2 more [two]", "sys hi hello tool 1 [one]"]
    assert branches(built)["c"] == "fork"
    assert built.stats.tokens == 3 + 1 + 2 + 3


def test_compaction_starts_a_root_told_by_its_thread() -> None:
    log = Log()
    main = {"thread": "m"}
    log.call("a", "sys hi", "hello", lineage=main)
    log.call("s", "sub job", "doing", lineage={"thread": "s"})
    log.call("c", "sys summary", "going on", lineage=main | {"retry": "1", "window": "m:1", "request": "turn"})
    built = log.build()
    assert branches(built) == {"a": "root", "s": "root", "c": "compaction"}
    assert lines(built) == ["sys summary [going on]", "sys hi [hello]", "sub job [doing]"]
    assert built.stats.branches == {"compaction": 1, "root": 2}
    assert built.stats.tokens == 2 + 1 + 3 + 3, "`sys` is held once"


def test_headers_that_only_count_tell_of_no_thread() -> None:
    log = Log()
    log.call("a", "sys hi", "hello", lineage={"retry": "0"})
    log.call("b", "other job", "doing", lineage={"retry": "0"})
    assert branches(log.build()) == {"a": "root", "b": "root"}


def test_of_answers_to_one_prompt_the_one_gone_on_from_is_trained() -> None:
    log = Log()
    log.call("a", "sys hi", "good day")
    log.call("b", "sys hi", "good night")
    log.call("c", "sys hi good day tool", "ok")
    built = log.build()
    assert lines(built) == ["sys hi [good day] tool [ok]"]
    assert branches(built) == {"a": "root", "b": "sibling", "c": None}
    assert built.stats.masked_tokens == {"undelivered": 2}
    assert built.stats.tokens == 2 + 2 + 2 + 2, "answers to one prompt are branches of their own"


def test_of_answers_to_one_prompt_that_none_went_on_from_the_last_is_trained() -> None:
    log = Log()
    log.call("a", "sys hi", "good day")
    log.call("b", "sys hi", "good night")
    assert lines(log.build()) == ["sys hi [good night]"]


def test_an_abandoned_call_still_tells_which_answer_was_used() -> None:
    log = Log()
    log.call("a", "sys hi", "good day")
    log.call("b", "sys hi", "good night")
    log.call("c", "sys hi good day tool", outcome=CallOutcome.ABANDONED)
    built = log.build()
    assert lines(built) == ["sys hi [good day]"]
    assert branches(built)["c"] is None
    assert built.stats.calls == 3
    assert built.stats.answered == 2


def test_equal_answers_to_one_prompt_are_told_apart_by_thread_then_by_the_last() -> None:
    log = Log()
    log.call("a", "sys hi", "same", lineage={"agent": "x"})
    log.call("b", "sys hi", "same", lineage={"agent": "y"})
    log.call("c", "sys hi", "same", lineage={"agent": "z"})
    log.call("d", "sys hi same tool", "x goes on", lineage={"agent": "x"})
    log.call("e", "sys hi same tool", "who", lineage={"agent": "w"})
    built = log.build()
    assert parents(built) == {"a": None, "b": None, "c": None, "d": "a", "e": "c"}
    assert lines(built) == ["sys hi [same] tool [x goes on]", "sys hi [same] tool [who]", "sys hi [same]"]
    assert [built.calls[n.call].call_id for n in built.nodes if n.call is not None] == ["a", "b", "c", "d", "e"]


def test_sub_agents_that_start_alike_do_not_supersede_one_another() -> None:
    log = Log()
    log.call("a", "sys job", "left", lineage={"agent": "1"})
    log.call("b", "sys job", "right", lineage={"agent": "2"})
    built = log.build()
    assert sorted(lines(built)) == ["sys job [left]", "sys job [right]"]


def test_choices_of_one_request_do_not_supersede_one_another_and_a_retrys_do() -> None:
    log = Log()
    for call_id, sampled, choice in [("a", "one", 0), ("a.1", "two", 1)]:
        log.call(call_id, "sys hi", sampled, choice=choice, lineage={"retry": "0"})
    built = log.build()
    assert sorted(lines(built)) == ["sys hi [one]", "sys hi [two]"]
    assert branches(built) == {"a": "root", "a.1": "sibling"}
    for call_id, sampled, choice in [("c", "three", 0), ("c.1", "four", 1)]:
        log.call(call_id, "sys hi", sampled, choice=choice, lineage={"retry": "1"})
    log.call("e", "sys hi four tool", "ok")
    built = log.build()
    assert sorted(lines(built)) == ["sys hi [four] tool [ok]", "sys hi [three]"]
    assert built.stats.masked_tokens == {"undelivered": 2}
    assert branches(built) == {"a": "root", "a.1": "sibling", "c": "sibling", "c.1": "sibling", "e": None}


def test_choices_of_one_request_are_superseded_together() -> None:
    log = Log()
    for call_id, sampled, choice in [("a", "one", 0), ("a.1", "two", 1), ("b", "three", 0)]:
        log.call(call_id, "sys hi", sampled, choice=choice)
    built = log.build()
    assert lines(built) == ["sys hi [three]"]
    assert built.stats.masked_tokens == {"undelivered": 2}


def test_an_answer_cut_short_and_continued_stays_one_trace() -> None:
    log = Log()
    log.call("a", "sys hi", "a long", finish_reason="length")
    log.call("b", "sys hi a long <end> user go on", "story <end>")
    built = log.build()
    assert lines(built) == ["sys hi [a long] <end> user go on [story <end>]"]
    assert built.traces[0].finish_reason == "stop"


def test_edited_history_branches_inside_the_answer_and_each_half_is_trained_once() -> None:
    log = Log()
    log.call("a", "sys hi", "think hard hello <end>")
    log.call("b", "sys hi think hard bye <end> tool", "ok <end>")
    built = log.build()
    assert lines(built) == ["sys hi [think hard] bye <end> tool [ok <end>]", "sys hi think hard [hello <end>]"]
    assert branches(built)["b"] == "edited_history"
    assert built.stats.drift == {"fork": 1}
    assert built.stats.trainable_tokens == 6
    halves = [node for node in built.nodes if node.call == 0]
    assert [count(node.tokens) for node in halves] == [2, 2]
    assert b"".join(node.logprobs or b"" for node in halves) == pack_logprobs(logprobs_for("a", [0] * 4))


def test_reasoning_stripped_from_history_is_edited_history_after_the_last_parent_that_stands() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool", "<think> hm </think> ok")
    log.call("c", "sys hi hello tool ok more", "done")
    built = log.build()
    assert branches(built)["c"] == "edited_history"
    assert parents(built)["c"] == "a"
    assert lines(built) == ["sys hi [hello] tool [<think> hm </think> ok]", "sys hi hello tool ok more [done]"]


def test_side_calls_stay_in_the_tree_and_out_of_training() -> None:
    log = Log()
    log.call("t", "title please", "A Title", kind="title", kind_rule="tools_absent")
    log.call("a", "sys hi", "hello")
    log.call("s", "sys hi hello summarise", "short", kind="summary")
    built = log.build()
    assert lines(built) == ["sys hi [hello]"]
    assert built.stats.masked_tokens == {"side_call": 3}
    assert {node.masked for node in built.nodes if node.call in (0, 2)} == {"side_call"}
    assert built.stats.tokens == 4 + 3 + 2


def test_a_sub_agents_work_and_a_compaction_are_trained_and_their_traces_say_so() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sub job", "doing", kind="subagent", kind_rule="agent_header", lineage={"agent": "1"})
    log.call("c", "sys hi hello summarise", "short", kind="compaction")
    built = log.build()
    assert {line(built, trace): trace.kind for trace in built.traces} == {
        "sys hi [hello] summarise [short]": "compaction",
        "sub job [doing]": "subagent",
    }
    assert built.stats.masked_tokens == {}


def test_a_disowned_call_is_masked_and_nothing_follows_from_it() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi", "hallo")
    built = log.build(disowned=frozenset({"b"}))
    assert lines(built) == ["sys hi [hello]"]
    assert built.stats.masked_tokens == {"disowned": 1}


def test_a_retry_of_a_disowned_call_is_no_sibling() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi", "hello")
    log.call("c", "sys hi hello tool", "ok")
    built = log.build(disowned=frozenset({"a"}))
    assert branches(built) == {"a": "root", "b": "root", "c": None}
    assert parents(built)["c"] == "b"
    assert lines(built) == ["sys hi [hello] tool [ok]"]


def test_the_first_record_of_a_call_id_counts() -> None:
    log = Log()
    log.call("a", "sys hi", "first")
    log.call("b", "sys hi first tool", "ok")
    log.call("a", "other", "second")
    built = log.build()
    assert lines(built) == ["sys hi [first] tool [ok]"]
    assert built.stats.calls == 2


@pytest.mark.parametrize("base", ["gone", "self", "a"])
def test_a_prompt_that_cannot_be_told_is_quarantined_with_all_that_builds_on_it(base: str) -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("self", "x", "lost", written=TokenDelta(rest=pack_ids(ids_of("x")), shared=9, base=base))
    log.call("c", "x lost y", "lost too", written=TokenDelta(rest=pack_ids(ids_of("y")), shared=1, base="self"))
    built = log.build()
    assert lines(built) == ["sys hi [hello]"]
    assert built.stats.masked_tokens == {"base_missing": 3}
    assert built.stats.drift == {"quarantine": 2}
    assert built.stats.branches == {"base_missing": 2, "root": 1}
    assert (built.stats.sampled_tokens, built.stats.trainable_tokens) == (4, 1)


@pytest.mark.parametrize("logprobs", [[], [-1.0], [-1.0, -2.0, -3.0], [-1.0, math.nan], [-math.inf, -1.0]])
def test_tokens_without_usable_logprobs_are_masked(logprobs: list[float]) -> None:
    log = Log()
    log.call("a", "sys hi", "two tokens", logprobs=pack_logprobs(logprobs))
    log.call("b", "sys hi two tokens tool", "ok")
    built = log.build()
    assert lines(built) == ["sys hi two tokens tool [ok]"]
    assert built.stats.masked_tokens == {"invalid_logprobs": 2}
    assert built.stats.drift == {"clean": 1, "quarantine": 1}


def test_failed_calls_are_listed_and_hold_no_nodes_but_may_be_a_base() -> None:
    log = Log()
    log.call("a", "sys hi", outcome=CallOutcome.FAILED)
    log.call("b", "sys hi", "hello")
    log.call("f", "")
    built = log.build()
    assert log.calls[1].prompt.base == "a"
    assert lines(built) == ["sys hi [hello]"]
    assert branches(built)["b"] == "root"
    assert [call.outcome for call in built.calls] == ["failed", "answered", "answered"]


def test_an_empty_session_yields_an_empty_trajectory_with_the_status_of_its_build() -> None:
    error = SessionError("run", Kind.INFRA, "lost", "no worker came back")
    built = Log().build(status=Status.FAILED, error=error, reward=None, claim_id="")
    assert (built.status, built.error, built.reward) == (Status.FAILED, error, None)
    assert (built.nodes, built.calls, built.traces) == ([], [], [])
    assert built.stats == msgspec.convert({}, type(built.stats))


def test_rewards_are_the_sessions_on_traces_and_each_calls_own_on_calls() -> None:
    built = chain().build(reward=0.25, call_rewards={"b": 1.0, "unknown": 3.0})
    assert [trace.reward for trace in built.traces] == [0.25]
    assert [call.reward for call in built.calls] == [None, 1.0, None]


def test_what_the_build_says_is_carried_and_all_of_it_survives_the_wire() -> None:
    session = BuiltFrom(
        build_record(metadata=b'{"k":1}', mode="eval", artifacts={"log": "x"}), chain().calls, late_calls=2
    )
    built = PrefixMerging().build(session)
    assert (built.metadata, built.mode, built.artifacts, built.stats.late_calls) == (
        b'{"k":1}',
        "eval",
        {"log": "x"},
        2,
    )
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(built), type=Trajectory)
    assert again == built


@pytest.mark.parametrize("name", ["prefix_merging", "per_request"])
def test_builders_are_found_by_name_and_refuse_settings_they_do_not_have(name: str) -> None:
    builder: type[Builder] = registry.load(registry.Kind.BUILDER, name)
    builder()
    with pytest.raises(InputError, match=r"builder\.config\.merge_all: no such setting .* \(got True\)"):
        builder(merge_all=True)


def test_other_systems_end_of_turn_setting_is_taken_and_changes_nothing() -> None:
    assert chain().build(PrefixMerging(end_of_turn_token_id=5)) == chain().build()
    with pytest.raises(InputError, match="end_of_turn_token_id"):
        PrefixMerging(end_of_turn_token_id="5")  # type: ignore[arg-type] # as a task may have it


def test_a_thousand_growing_turns_are_built_from_their_new_tokens_alone() -> None:
    rng = np.random.default_rng(0)
    log = Log()
    for turn in range(1000):
        rest = pack_ids(rng.integers(0, 50_000, 300, dtype=np.int32))
        prompt = TokenDelta(rest, shared=400 * turn, base=f"c{turn - 1}") if turn else TokenDelta(rest)
        log.calls.append(completion(f"c{turn}", prompt, rng.integers(0, 50_000, 100).tolist()))
    built = log.build()
    assert len(built.traces) == 1
    assert len(built.nodes) == 2000
    assert built.stats.tokens == 400_000
    assert sum(len(node.tokens) + len(node.logprobs or b"") for node in built.nodes) == 4 * 500_000
