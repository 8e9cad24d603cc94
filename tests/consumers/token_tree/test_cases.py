"""Every case that a session's calls can make, each with its reason code.

A token is a word; what a trace trains stands in brackets.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.builders.prefix_merging import PrefixMerging
from tests.consumers.token_tree.transcripts import (
    Log,
    branches,
    completion,
    delta,
    ids_of,
    lines,
    logprobs_for,
    parents,
)
from topics.calls.delta import PromptIndex
from topics.types.completion import CallOutcome, TokenDelta
from topics.types.tokens import count, pack_ids, pack_logprobs
from topics.types.trajectory import Trajectory

CASES = """
a conversation that only grows is one trace
    a: sys hi > hello <end> -> root
    b: sys hi hello <end> tool 1 > ok <end> -> after a
    c: sys hi hello <end> tool 1 ok <end> tool 2 > done <end> -> after b
    = sys hi [hello <end>] tool 1 [ok <end>] tool 2 [done <end>]
    tokens 12, trained 6, drift clean 2

calls in flight at once that continue one answer are parallel, and all are trained
    a: {at=0-10} sys hi > two tools -> root
    b: {at=20-40} sys hi two tools first > one -> after a
    c: {at=21-50} sys hi two tools second thing > two -> parallel after a
    d: {at=51-60} sys hi two tools third > three -> fork after a
    = sys hi [two tools] second thing [two]
    = sys hi two tools first [one]
    = sys hi two tools third [three]
    tokens 11, trained 5, drift clean 3

answers to one prompt in flight at once are siblings, not retries
    a: {at=0-10} sys hi > one -> root
    b: {at=1-9} sys hi > two -> sibling, undelivered
    c: {at=11} sys hi one more > ok -> after a
    = sys hi [one] more [ok]
    tokens 6, trained 2, masked undelivered 1, drift clean 1

after a retry, the answer that the session continues is trained; answers to one prompt are separate branches
    a: sys hi > good day -> root
    b: sys hi > good night -> retry, undelivered
    c: sys hi good day tool > ok -> after a
    = sys hi [good day] tool [ok]
    tokens 8, trained 3, masked undelivered 2, drift clean 1

after a retry, the last answer is trained if the session continues none
    a: sys hi > good day -> root, undelivered
    b: sys hi > good night -> retry
    = sys hi [good night]
    tokens 6, trained 2, masked undelivered 2

an answer that the harness saw before it asked again is rejected
    a: sys hi > { oops -> root, rejected
    b: {rejects=a} sys hi > good night -> retry
    c: sys hi good night tool > ok -> after b
    = sys hi [good night] tool [ok]
    tokens 8, trained 3, masked rejected 2, drift clean 1

the calls that reject an answer may have no answer themselves
    a: sys hi > { oops -> root, rejected
    b: {rejects=a outcome=failed} sys hi > -> -
    c: sys hi > good night -> retry
    = sys hi [good night]
    tokens 6, trained 2, masked rejected 2

an answer that the session continues wasn't rejected, whatever was asked again
    a: sys hi > good day -> root
    b: {rejects=a} sys hi > good night -> retry, undelivered
    c: sys hi good day tool > ok -> after a
    = sys hi [good day] tool [ok]
    tokens 8, trained 3, masked undelivered 2, drift clean 1

an answer that was rejected for an answer that nobody received is trained
    a: sys hi > good day -> root
    b: {rejects=a disowned} sys hi > good night -> retry, disowned
    = sys hi [good day]
    tokens 6, trained 2, masked disowned 2

a retry in the middle of a session costs the unused answer alone
    a: sys hi > hello -> root
    lost: sys hi hello tool 1 > half an answer -> after a, undelivered
    b: {retry=1} sys hi hello tool 1 > ok -> retry after a
    c: sys hi hello tool 1 ok tool 2 > done -> after b
    = sys hi [hello] tool 1 [ok] tool 2 [done]
    tokens 12, trained 3, masked undelivered 3, drift clean 3

after a retry, the last answer is trained if the history was edited
    a: sys hi > good day -> root, undelivered
    b: sys hi > good night -> retry
    c: sys hi bye tool > ok -> edited_history
    = sys hi bye tool [ok]
    = sys hi [good night]
    tokens 9, trained 3, masked undelivered 2, drift fork 1

of answers that are equal once stripped, the last was used
    a: sys hi > <think> hm </think> good day -> root, undelivered
    b: sys hi > <think> well </think> good day -> retry
    c: sys hi good day tool > ok -> stripped
    = sys hi [<think> well </think> good day]
    = sys hi good day tool [ok]
    tokens 16, trained 6, masked undelivered 5, drift fork 1

of answers that the session continues but for their end of turn, the longest was used
    a: sys hi > ok done <eos> -> root
    b: sys hi > ok <eos> -> retry, undelivered
    c: sys hi ok done <end> tool > good -> end_of_turn
    = sys hi [ok done] <end> tool [good]
    = sys hi ok done [<eos>]
    tokens 10, trained 4, masked undelivered 2, drift fork 1

an abandoned call still shows which answer was used
    a: sys hi > good day -> root
    b: sys hi > good night -> retry, undelivered
    c: {outcome=abandoned} sys hi good day tool > -> after a
    = sys hi [good day]
    tokens 6, trained 2, masked undelivered 2

choices of one request do not supersede one another
    a: {retry=0 choice=0} sys hi > one -> root
    a.1: {retry=0 choice=1} sys hi > two -> sibling
    = sys hi [one]
    = sys hi [two]
    tokens 4, trained 2

choices of a retried request supersede the earlier choices
    a: {retry=0 choice=0} sys hi > one -> root, undelivered
    a.1: {retry=0 choice=1} sys hi > two -> sibling, undelivered
    c: {retry=1 choice=0} sys hi > three -> retry
    c.1: {retry=1 choice=1} sys hi > four -> retry
    e: sys hi four tool > ok -> after c.1
    = sys hi [four] tool [ok]
    = sys hi [three]
    tokens 8, trained 3, masked undelivered 2, drift clean 1

choices of one request are superseded together
    a: {choice=0} sys hi > one -> root, undelivered
    a.1: {choice=1} sys hi > two -> sibling, undelivered
    b: {choice=0} sys hi > three -> retry
    = sys hi [three]
    tokens 5, trained 1, masked undelivered 2

two continuations of one answer are a fork, and the answer is trained once
    a: sys hi > hello -> root
    b: sys hi hello tool 1 > one -> after a
    c: sys hi hello tool 2 more > two -> fork after a
    = sys hi [hello] tool 2 more [two]
    = sys hi hello tool 1 [one]
    tokens 9, trained 3, drift clean 2

sub-agents with equal prompts do not supersede one another
    a: {agent=1} sys job > left -> root
    b: {agent=2} sys job > right -> sibling
    = sys job [left]
    = sys job [right]
    tokens 4, trained 2

a sub-agent's root is named as such, and its thread is a tree of its own
    a: {thread=m} sys hi > ask it -> root
    s1: {thread=m agent=1 kind=subagent} sub job > looking -> subagent
    s2: {thread=m agent=1 kind=subagent} sub job looking file > found -> after s1
    b: {thread=m} sys hi ask it found > done -> after a
    = sys hi [ask it] found [done]
    = sub job [looking] file [found] (subagent)
    tokens 11, trained 5, drift clean 2

the calls of a sub-agent and a compaction are trained, and their traces carry the kind
    a: sys hi > hello -> root
    b: {agent=1 kind=subagent} sub job > doing -> subagent
    c: {kind=compaction} sys hi hello summarise > short -> after a
    = sys hi [hello] summarise [short] (compaction)
    = sub job [doing] (subagent)
    tokens 8, trained 3, drift clean 1

the first root of a thread after its compaction goes on from it; a shared prefix is stored once
    a: {thread=m} sys hi > hello -> root
    s: {thread=s} sub job > doing -> root
    sum: {thread=m request=compaction kind=compaction} sys hi hello sum up > short -> after a
    other: {thread=s} sub two > it -> root
    t: {thread=m kind=title} title please > Words -> root, side_call
    c: {thread=m retry=1 window=m:1 request=turn} sys short > going on -> compaction
    new: {thread=m} sys new > well -> root
    = sys hi [hello] sum up [short] (compaction)
    = sys short [going on]
    = sub job [doing]
    = sub two [it]
    = sys new [well]
    tokens 19, trained 7, masked side_call 1, drift clean 1

a compaction that work doesn't go on from is over when other work follows, so a later cleared history is a root
    a: {thread=m} sys hi > hello -> root
    sum: {thread=m kind=compaction} sys hi hello sum up > short -> after a
    b: {thread=m} sys hi hello there > well -> fork after a
    c: {thread=m} sys anew > fresh -> root
    = sys hi [hello] sum up [short] (compaction)
    = sys hi hello there [well]
    = sys anew [fresh]
    tokens 10, trained 4, drift clean 2

a root of a thread without a compaction is a root, whatever the thread did before
    a: {thread=m} sys hi > hello -> root
    b: {thread=m} sys anew > well -> root
    = sys hi [hello]
    = sys anew [well]
    tokens 5, trained 2

headers that only count name no thread
    a: {retry=0} sys hi > hello -> root
    b: {retry=0} other job > doing -> root
    = sys hi [hello]
    = other job [doing]
    tokens 6, trained 2

a fully replaced answer is edited history and stays trained
    a: sys hi > hello -> root
    b: sys hi bye tool > ok -> edited_history
    = sys hi bye tool [ok]
    = sys hi [hello]
    tokens 6, trained 2, drift fork 1

a truncated answer that the prompt repeats differently is edited history, not an end of turn
    a: {finish_reason=length} sys hi > a long sto -> root
    b: sys hi a long story > ends <end> -> edited_history
    = sys hi [a long] story [ends <end>]
    = sys hi a long [sto]
    tokens 8, trained 5, drift fork 1

tool calls that a harness repeats as text are edited history (smolagents' ToolCallingAgent)
    a: sys user go assistant > I look <call> ls <end> -> root
    b: sys user go assistant I look Calling ls <end> user out assistant > ok -> edited_history
    = sys user go assistant [I look] Calling ls <end> user out assistant [ok]
    = sys user go assistant I look [<call> ls <end>]
    tokens 16, trained 6, drift fork 1

if the generation prompt opens reasoning, a rewritten answer can't be told from another task
    a: sys user go assistant <think> > hm </think> <call> ls <end> -> root
    b: sys user go assistant Calling ls <end> user out assistant <think> > ok -> root
    = sys user go assistant Calling ls <end> user out assistant <think> [ok]
    = sys user go assistant <think> [hm </think> <call> ls <end>]
    tokens 18, trained 6

reasoning stripped from the history starts a branch after the last parent that remains
    a: sys hi > hello -> root
    b: sys hi hello tool > <think> hm </think> ok -> after a
    c: sys hi hello tool ok more > done -> stripped after a
    = sys hi [hello] tool [<think> hm </think> ok]
    = sys hi hello tool ok more [done]
    tokens 11, trained 6, drift clean 1, drift fork 1

reasoning that the generation prompt opened is also recognised as stripped
    a: sys hi user go assistant <think> > hm </think> the very answer <end> -> root
    b: sys hi user go assistant the very answer <end> tool > ok -> stripped
    c: sys hi user went assistant <think> > else -> root
    = sys hi user go assistant <think> [hm </think> the very answer <end>]
    = sys hi user go assistant the very answer <end> tool [ok]
    = sys hi user went assistant <think> [else]
    tokens 22, trained 8, drift fork 1

a prompt in which sampled tokens were put back is realigned
    a: sys hi > hello -> root
    b: sys hi hello tool 1 > ok -> after a
    c: {realigned=2} sys hi hello tool 1 ok tool 2 > done -> after b
    = sys hi [hello] tool 1 [ok] tool 2 [done]
    tokens 9, trained 3, drift clean 1, drift realign 1

side calls stay in the tree and out of training
    t: {kind=title} title please > A Title -> root, side_call
    a: sys hi > hello -> root
    s: {kind=summary} sys hi hello summarise > short -> after a, side_call
    = sys hi [hello]
    tokens 9, trained 1, masked side_call 3, drift clean 1

a disowned call is masked and nothing follows from it
    a: sys hi > hello -> root
    b: {disowned} sys hi > hallo -> retry, disowned
    = sys hi [hello]
    tokens 4, trained 1, masked disowned 1

a call that repeats a disowned call is no sibling
    a: {disowned} sys hi > hello -> root, disowned
    b: sys hi > hello -> root
    c: sys hi hello tool > ok -> after b
    = sys hi [hello] tool [ok]
    tokens 6, trained 2, masked disowned 1, drift clean 1

a last answer that nobody received is no leaf
    a: sys hi > hello -> root
    b: {disowned} sys hi hello tool > never read -> after a, disowned
    = sys hi [hello]
    tokens 6, trained 1, masked disowned 2, drift clean 1
"""
"""A title, then a row for each call, each trace and the totals.

A call: its id, what else is known of it, its prompt, its answer; then its branch, its parent and why its tokens are masked. `at`: when the
call was received and completed, in ms.
"""
CALL = re.compile(r"(?P<id>\S+): (\{(?P<known>.*)\} )?(?P<prompt>.*?) >(?P<sampled>.*?) -> .*")
LINEAGE = {"agent", "request", "retry", "thread", "window"}


def played(log: Log, row: re.Match[str]) -> None:
    """Add the call of one row to the log."""
    known = dict(word.partition("=")[::2] for word in (row["known"] or "").split())
    fields: dict[str, Any] = {name: value for name, value in known.items() if name in {"finish_reason", "kind"}}
    fields |= {name: int(known[name]) for name in ("choice", "realigned") if name in known}
    if "at" in known:
        fields |= zip(("received_at", "completed_at"), map(int, known["at"].split("-")), strict=False)
    if "rejects" in known:
        fields["rejects"] = [known["rejects"]]
    if "outcome" in known:
        fields["outcome"] = CallOutcome(known["outcome"])
    if known.keys() & LINEAGE:
        fields["lineage"] = {name: value for name, value in known.items() if name in LINEAGE}
    log.call(row["id"], row["prompt"], row["sampled"], **fields)


def outcomes(built: Trajectory) -> list[str]:
    """The end of each call's row, then the rows of the traces and the totals."""
    found = []
    for index, call in enumerate(built.calls):
        ends = [call.branch, f"after {call.parent}" if call.parent else None]
        masks = sorted({node.masked for node in built.nodes if node.call == index and node.masked})
        found.append(", ".join([" ".join(filter(None, ends)) or "-", *masks]))
    kinds = ["" if trace.kind == "main" else f" ({trace.kind})" for trace in built.traces]
    found += [f"= {trained}{kind}" for trained, kind in zip(lines(built), kinds, strict=True)]
    stats = built.stats
    totals = [f"tokens {stats.tokens}", f"trained {stats.trainable_tokens}"]
    totals += [f"masked {reason} {number}" for reason, number in stats.masked_tokens.items()]
    return [*found, ", ".join([*totals, *(f"drift {kind} {number}" for kind, number in stats.drift.items())])]


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"), ids=lambda case: case.partition("\n")[0])
def test_calls_give_these_branches_traces_and_totals(case: str) -> None:
    log, (_, *rows) = Log(), case.split("\n    ")
    calls = [call for call in map(CALL.fullmatch, rows) if call]
    for call in calls:
        played(log, call)
    built = log.build(disowned=frozenset(call["id"] for call in calls if "disowned" in (call["known"] or "").split()))
    assert outcomes(built) == [row.rpartition(" -> ")[2] for row in rows]
    answered = [call for call in built.calls if call.outcome == CallOutcome.ANSWERED]
    assert (built.stats.calls, built.stats.answered) == (len(calls), len(answered))
    assert built.stats.sampled_tokens == built.stats.trainable_tokens + sum(built.stats.masked_tokens.values())
    assert built.stats.branches == Counter(call.branch for call in answered if call.branch)


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


def test_the_first_record_of_a_call_id_counts() -> None:
    log = Log()
    log.call("a", "sys hi", "first")
    log.call("b", "sys hi first tool", "ok")
    log.call("a", "other", "second")
    built = log.build()
    assert lines(built) == ["sys hi [first] tool [ok]"]
    assert built.stats.calls == 2


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


def test_an_answer_cut_short_and_continued_stays_one_trace() -> None:
    log = Log()
    log.call("a", "sys hi", "a long", finish_reason="length")
    log.call("b", "sys hi a long <end> user go on", "story <end>")
    built = log.build()
    assert lines(built) == ["sys hi [a long] <end> user go on [story <end>]"]
    assert built.traces[0].finish_reason == "stop"


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


def test_a_call_whose_engine_read_another_prompt_is_masked_and_in_quarantine() -> None:
    log = Log()
    log.call("a", "sys hi", "two tokens", prompt_doubt="ids")
    log.call("b", "sys hi two tokens tool", "ok")
    built = log.build()
    assert lines(built) == ["sys hi two tokens tool [ok]"]
    assert built.stats.masked_tokens == {"prompt_differs": 2}
    assert built.stats.drift == {"clean": 1, "quarantine": 1}


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
