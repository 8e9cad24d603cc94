"""Every case that a session's calls can make, each with its reason code: in the order of docs/builder.md's tables.

A token is a word; what a trace trains stands in brackets.
"""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from tests.consumers.token_tree.transcripts import (
    Log,
    branches,
    build_record,
    completion,
    delta,
    ids_of,
    line,
    lines,
    logprobs_for,
    parents,
)
from topics.calls.delta import PromptIndex
from topics.types.completion import CallOutcome, TokenDelta
from topics.types.tokens import count, pack_ids, pack_logprobs

# Parallel calls


def test_calls_in_flight_at_once_that_continue_one_answer_are_parallel_and_all_trained() -> None:
    log = Log()
    log.call("a", "sys hi", "two tools", received_at=0, completed_at=10)
    log.call("b", "sys hi two tools first", "one", received_at=20, completed_at=40)
    log.call("c", "sys hi two tools second thing", "two", received_at=21, completed_at=50)
    log.call("d", "sys hi two tools third", "three", received_at=51, completed_at=60)
    built = log.build()
    assert branches(built) == {"a": "root", "b": None, "c": "parallel", "d": "fork"}
    assert lines(built) == [
        "sys hi [two tools] second thing [two]",
        "sys hi two tools first [one]",
        "sys hi two tools third [three]",
    ]
    assert built.stats.trainable_tokens == built.stats.sampled_tokens == 5


def test_samples_of_one_prompt_in_flight_at_once_are_siblings_and_no_retry() -> None:
    log = Log()
    log.call("a", "sys hi", "one", received_at=0, completed_at=10)
    log.call("b", "sys hi", "two", received_at=1, completed_at=9)
    log.call("c", "sys hi one more", "ok", received_at=11)
    built = log.build()
    assert branches(built) == {"a": "root", "b": "sibling", "c": None}
    assert lines(built) == ["sys hi [one] more [ok]"]
    assert built.stats.masked_tokens == {"undelivered": 1}


# Identical prompts and retries


def test_of_a_retrys_answers_the_one_gone_on_from_is_trained() -> None:
    log = Log()
    log.call("a", "sys hi", "good day")
    log.call("b", "sys hi", "good night")
    log.call("c", "sys hi good day tool", "ok")
    built = log.build()
    assert lines(built) == ["sys hi [good day] tool [ok]"]
    assert branches(built) == {"a": "root", "b": "retry", "c": None}
    assert built.stats.masked_tokens == {"undelivered": 2}
    assert built.stats.tokens == 2 + 2 + 2 + 2, "answers to one prompt are branches of their own"


def test_of_a_retrys_answers_that_none_went_on_from_the_last_is_trained() -> None:
    log = Log()
    log.call("a", "sys hi", "good day")
    log.call("b", "sys hi", "good night")
    assert lines(log.build()) == ["sys hi [good night]"]


def test_a_retry_in_the_middle_of_a_session_costs_nothing_but_the_answer_that_went_unused() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("lost", "sys hi hello tool 1", "half an answer")
    log.call("b", "sys hi hello tool 1", "ok", lineage={"retry": "1"})
    log.call("c", "sys hi hello tool 1 ok tool 2", "done")
    built = log.build()
    assert branches(built) == {"a": "root", "lost": None, "b": "retry", "c": None}
    assert lines(built) == ["sys hi [hello] tool 1 [ok] tool 2 [done]"]
    assert built.stats.masked_tokens == {"undelivered": 3}


@pytest.mark.parametrize(
    ("used", "history", "branch"),
    [("good day <eos>", "good day <end>", "end_of_turn"), ("<think> hm </think> good day", "good day", "stripped")],
)
@pytest.mark.parametrize("outcome", [CallOutcome.ANSWERED, CallOutcome.ABANDONED])
def test_of_a_retrys_answers_the_one_that_a_drifting_template_goes_on_from_is_trained(
    used: str, history: str, branch: str, outcome: CallOutcome
) -> None:
    log = Log()
    log.call("a", "sys hi", used)
    log.call("b", "sys hi", "good night <eos>")
    log.call("c", f"sys hi {history} tool", "ok" if outcome is CallOutcome.ANSWERED else "", outcome=outcome)
    built = log.build()
    assert branches(built)["c"] == (branch if outcome is CallOutcome.ANSWERED else None)
    assert built.stats.masked_tokens == {"undelivered": 3}
    assert {node.masked for node in built.nodes if node.call == 1} == {"undelivered"}


def test_of_a_retrys_answers_the_last_is_trained_where_history_was_edited() -> None:
    log = Log()
    log.call("a", "sys hi", "good day")
    log.call("b", "sys hi", "good night")
    log.call("c", "sys hi bye tool", "ok")
    assert sorted(lines(log.build())) == ["sys hi [good night]", "sys hi bye tool [ok]"]


def test_of_answers_that_were_stripped_alike_the_last_was_used() -> None:
    log = Log()
    log.call("a", "sys hi", "<think> hm </think> good day")
    log.call("b", "sys hi", "<think> well </think> good day")
    log.call("c", "sys hi good day tool", "ok")
    assert sorted(lines(log.build())) == ["sys hi [<think> well </think> good day]", "sys hi good day tool [ok]"]


def test_of_answers_that_but_for_their_end_of_turn_were_gone_on_from_the_longest_was_used() -> None:
    """The end of one is the beginning of another."""
    log = Log()
    log.call("a", "sys hi", "ok done <eos>")
    log.call("b", "sys hi", "ok <eos>")
    log.call("c", "sys hi ok done <end> tool", "good")
    built = log.build()
    assert lines(built) == ["sys hi [ok done] <end> tool [good]", "sys hi ok done [<eos>]"]
    assert branches(built)["c"] == "end_of_turn"
    assert built.stats.masked_tokens == {"undelivered": 2}


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
    assert branches(built) == {"a": "root", "a.1": "sibling", "c": "retry", "c.1": "retry", "e": None}


def test_choices_of_one_request_are_superseded_together() -> None:
    log = Log()
    for call_id, sampled, choice in [("a", "one", 0), ("a.1", "two", 1), ("b", "three", 0)]:
        log.call(call_id, "sys hi", sampled, choice=choice)
    built = log.build()
    assert lines(built) == ["sys hi [three]"]
    assert built.stats.masked_tokens == {"undelivered": 2}


def test_the_first_record_of_a_call_id_counts() -> None:
    log = Log()
    log.call("a", "sys hi", "first")
    log.call("b", "sys hi first tool", "ok")
    log.call("a", "other", "second")
    built = log.build()
    assert lines(built) == ["sys hi [first] tool [ok]"]
    assert built.stats.calls == 2


# Forks


def test_two_continuations_of_one_answer_are_a_fork_and_the_answer_is_trained_once() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool 1", "one")
    log.call("c", "sys hi hello tool 2 more", "two")
    built = log.build()
    assert lines(built) == ["sys hi [hello] tool 2 more [two]", "sys hi hello tool 1 [one]"]
    assert branches(built)["c"] == "fork"
    assert built.stats.tokens == 3 + 1 + 2 + 3


# Sub-agents


def test_sub_agents_that_start_alike_do_not_supersede_one_another() -> None:
    log = Log()
    log.call("a", "sys job", "left", lineage={"agent": "1"})
    log.call("b", "sys job", "right", lineage={"agent": "2"})
    built = log.build()
    assert sorted(lines(built)) == ["sys job [left]", "sys job [right]"]


def test_a_sub_agents_root_says_so_and_its_thread_is_a_tree_of_its_own() -> None:
    log = Log()
    main, sub = {"thread": "m"}, {"thread": "m", "agent": "1"}
    log.call("a", "sys hi", "ask it", lineage=main)
    log.call("s1", "sub job", "looking", lineage=sub, kind="subagent")
    log.call("s2", "sub job looking file", "found", lineage=sub, kind="subagent")
    log.call("b", "sys hi ask it found", "done", lineage=main)
    built = log.build()
    assert branches(built) == {"a": "root", "s1": "subagent", "s2": None, "b": None}
    assert sorted(lines(built)) == ["sub job [looking] file [found]", "sys hi [ask it] found [done]"]


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


# Compaction


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


# Edited history


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


def test_an_answer_replaced_whole_is_edited_history_and_stays_trained() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi bye tool", "ok")
    built = log.build()
    assert branches(built) == {"a": "root", "b": "edited_history"}
    assert lines(built) == ["sys hi bye tool [ok]", "sys hi [hello]"]
    assert built.stats.drift == {"fork": 1}


# Truncated answers


def test_an_answer_cut_short_and_continued_stays_one_trace() -> None:
    log = Log()
    log.call("a", "sys hi", "a long", finish_reason="length")
    log.call("b", "sys hi a long <end> user go on", "story <end>")
    built = log.build()
    assert lines(built) == ["sys hi [a long] <end> user go on [story <end>]"]
    assert built.traces[0].finish_reason == "stop"


def test_an_answer_cut_short_and_told_again_otherwise_is_an_edit_and_no_end_of_turn() -> None:
    log = Log()
    log.call("a", "sys hi", "a long sto", finish_reason="length")
    log.call("b", "sys hi a long story", "ends <end>")
    assert branches(log.build())["b"] == "edited_history"


# Several end-of-turn tokens


@pytest.mark.parametrize(
    ("sampled", "history"),
    [
        ("hello <end>", "hello <end>"),
        ("hello <end>", "hello <end> newline"),
        ("hello", "hello <end>"),
        ("hello <observation>", "hello <observation>"),
    ],
    ids=["the same", "the template adds a newline", "a stop string left it out", "the next turn's first token"],
)
def test_an_end_of_turn_that_the_prompt_repeats_is_a_plain_continuation(sampled: str, history: str) -> None:
    log = Log()
    log.call("a", "sys hi", sampled)
    log.call("b", f"sys hi {history} tool", "ok <end>")
    built = log.build()
    assert branches(built)["b"] is None
    assert len(built.traces) == 1
    assert built.stats.drift == {"clean": 1}


@pytest.mark.parametrize("history", ["hello you <end>", "hello you newline"], ids=["another token", "none"])
def test_an_end_of_turn_that_the_template_spells_otherwise_is_trained_on_a_trace_of_its_own(history: str) -> None:
    log = Log()
    log.call("a", "sys hi", "hello you <eos>")
    log.call("b", f"sys hi {history} tool", "ok <end>")
    built = log.build()
    assert branches(built)["b"] == "end_of_turn"
    assert built.stats.drift == {"fork": 1}
    assert lines(built) == [f"sys hi [hello you] {history.split()[-1]} tool [ok <end>]", "sys hi hello you [<eos>]"]
    without = log.build(PrefixMerging(filters={"min_trainable_tokens": 2}))
    assert len(without.traces) == 1
    assert without.stats.masked_tokens == {"filtered_short": 1}


# Stripped reasoning


def test_reasoning_stripped_from_history_starts_a_branch_after_the_last_parent_that_stands() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool", "<think> hm </think> ok")
    log.call("c", "sys hi hello tool ok more", "done")
    built = log.build()
    assert branches(built)["c"] == "stripped"
    assert parents(built)["c"] == "a"
    assert lines(built) == ["sys hi [hello] tool [<think> hm </think> ok]", "sys hi hello tool ok more [done]"]


def test_reasoning_whose_opening_the_generation_prompt_held_is_told_as_stripped_too() -> None:
    log = Log()
    log.call("a", "sys hi user go assistant <think>", "hm </think> the very answer <end>")
    log.call("b", "sys hi user go assistant the very answer <end> tool", "ok")
    log.call("c", "sys hi user went assistant <think>", "else")
    built = log.build()
    assert branches(built) == {"a": "root", "b": "stripped", "c": "root"}
    assert built.stats.drift == {"fork": 1}


def test_many_calls_under_one_system_prompt_cost_no_square() -> None:
    """Each would be looked for in all before it: 15 s at this number of them."""
    log = Log()
    for index in range(1000):
        tail, answer = (range(1000 + 100 * index + at, 1000 + 100 * index + end) for at, end in ((0, 12), (20, 40)))
        prompt = [*range(40), *tail]
        log.calls.append(completion(f"c{index}", delta(prompt), list(answer), received_at=index, completed_at=index))
    began = time.process_time()
    assert log.build().stats.traces == 1000
    assert time.process_time() - began < 5.0


def test_what_stands_where_sampled_tokens_were_put_back_is_realigned() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool 1", "ok")
    log.call("c", "sys hi hello tool 1 ok tool 2", "done", realigned=2)
    built = log.build()
    assert built.stats.drift == {"clean": 1, "realign": 1}
    assert branches(built)["c"] is None


# Side calls, late calls, undelivered calls


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


def test_late_calls_are_counted_and_not_built() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    built = PrefixMerging().build(BuiltFrom(build_record(), log.calls, late_calls=2))
    assert (built.stats.calls, built.stats.late_calls) == (1, 2)


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


def test_a_last_answer_that_no_one_ever_saw_is_no_leaf() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool", "never read")
    built = log.build(disowned=frozenset({"b"}))
    assert lines(built) == ["sys hi [hello]"]
    assert built.stats.masked_tokens == {"disowned": 2}


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


# What can't be trusted


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


@pytest.mark.parametrize(
    "logprobs", [[], [-1.0], [-1.0, -2.0, -3.0], [-1.0, math.nan], [-math.inf, -1.0], [-9999.0, -1.0]]
)
def test_tokens_without_usable_logprobs_are_masked(logprobs: list[float]) -> None:
    log = Log()
    log.call("a", "sys hi", "two tokens", logprobs=pack_logprobs(logprobs))
    log.call("b", "sys hi two tokens tool", "ok")
    built = log.build()
    assert lines(built) == ["sys hi two tokens tool [ok]"]
    assert built.stats.masked_tokens == {"invalid_logprobs": 2}
    assert built.stats.drift == {"clean": 1, "quarantine": 1}


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": TokenDelta(rest=b"\1\0\0")},
        {"prompt": TokenDelta(rest=pack_ids([3, -1]))},
        {"sampled": b"\1\0\0\0\2"},
        {"sampled": pack_ids([-7])},
    ],
    ids=["prompt cut", "prompt negative", "sampled cut", "sampled negative"],
)
def test_bytes_that_are_no_token_ids_quarantine_their_call_and_cost_no_other(bad: dict[str, Any]) -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("x", "sys other", "bad")
    log.calls[-1] = msgspec.structs.replace(log.calls[-1], **bad)
    log.call("b", "sys hi hello tool", "ok", written=TokenDelta(rest=pack_ids(ids_of("sys hi hello tool"))))
    built = log.build()
    assert lines(built) == ["sys hi [hello] tool [ok]"]
    assert branches(built)["x"] == "invalid_tokens"
    assert built.stats.masked_tokens == {"invalid_tokens": 1}
    assert built.stats.drift == {"clean": 1, "quarantine": 1}


def long_session(broken: bytes | None = None) -> Log:
    """Three calls of some blocks each, as the proxy writes them; `broken` stands for the second's chain."""
    log, index = Log(), PromptIndex()
    rng = np.random.default_rng(0)
    prompt = np.empty(0, dtype=np.int32)
    for name in "abc":
        prompt = np.concatenate((prompt, rng.integers(0, 9, 700, dtype=np.int32)))
        written = index.encode(prompt)
        if name == "b" and broken is not None:
            written = TokenDelta(written.rest, written.shared, written.base, broken)
        answer = rng.integers(0, 9, 100, dtype=np.int32)
        log.call(name, "", answer.tolist(), written=written)
        index.add(name, prompt, answer)
        prompt = np.concatenate((prompt, answer))
    return log


def test_a_prompt_that_isnt_the_one_the_proxy_saw_is_quarantined_with_all_that_builds_on_it() -> None:
    assert long_session().build().stats.drift == {"clean": 2}
    built = long_session(broken=bytes(16)).build()
    assert branches(built) == {"a": "root", "b": "chain_differs", "c": "base_missing"}
    assert built.stats.masked_tokens == {"base_missing": 100, "chain_differs": 100}
    assert built.stats.drift == {"quarantine": 2}
