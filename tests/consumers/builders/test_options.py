"""The builders that come with Polar: what they carry over from a session, filters with their counts, and the target of the reward."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.builders.base import Builder, BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from tests.consumers.token_tree.transcripts import Log, branches, build_record, completion, line, lines
from topics.environment import registry
from topics.types.completion import FREE, Sampling, TokenDelta
from topics.types.errors import InputError, Kind, SessionError
from topics.types.session import Status
from topics.types.task import TRAINING_DEFAULTS
from topics.types.tokens import pack_ids
from topics.types.trajectory import Trajectory

BOTH: list[type[Builder]] = [registry.load(registry.Kind.BUILDER, name) for name in ("prefix_merging", "per_request")]


def session() -> Log:
    """Two turns, a sub-agent's, a title, and an answer that was cut."""
    log = Log()
    log.call("a", "sys hi", "ask it")
    log.call("s", "sub job", "found it out", kind="subagent")
    log.call("t", "title please", "A Title", kind="title")
    log.call("b", "sys hi ask it found", "a long", finish_reason="length")
    return log


FOUND, ASKED, CUT = "sub job [found it out]", "sys hi [ask it]", "sys hi [ask it] found [a long]"


@pytest.mark.parametrize(
    ("filters", "traces", "masked"),
    [
        ({}, [FOUND, CUT], {}),
        ({"kinds": ["main", "title"]}, [CUT, "title please [A Title]"], {"filtered_kind": 3}),
        ({"drop_truncated": True}, [FOUND, ASKED], {"filtered_truncated": 2}),
        ({"max_tokens": 6}, [FOUND, ASKED], {"filtered_long": 2}),
        ({"min_trainable_tokens": 4}, [CUT], {"filtered_short": 3}),
    ],
    ids=lambda filters: ", ".join(filters) if isinstance(filters, dict) else "",
)
def test_a_filter_leaves_out_what_it_names_and_counts_it(
    filters: dict[str, Any], traces: list[str], masked: dict[str, int]
) -> None:
    built = session().build(PrefixMerging(filters=filters))
    assert sorted(lines(built)) == traces
    assert built.stats.masked_tokens == masked | ({} if "kinds" in filters else {"side_call": 2})
    assert built.stats.filtered == dict.fromkeys(masked, 1)
    assert built.stats.sampled_tokens == built.stats.trainable_tokens + sum(built.stats.masked_tokens.values())


def test_what_another_engine_sampled_is_context() -> None:
    log = Log()
    log.call("a", "sys hi", "ask it", engine="large")
    log.call("b", "sys hi ask it found", "so what", engine="small")
    log.call("c", "sys hi ask it found so what on", "done", engine="large")
    built = log.build(PrefixMerging(filters={"engines": ["large"]}))
    assert lines(built) == ["sys hi [ask it] found so what on [done]"]
    assert built.stats.masked_tokens == {"filtered_engine": 2}
    assert built.stats.filtered == {"filtered_engine": 1}
    assert len(lines(log.build(PrefixMerging()))[0].split("[")) == 4, "all are trained where nobody says whose"


@pytest.mark.parametrize("builder", BOTH)
def test_rejected_answers_are_traces_of_their_own_if_a_task_trains_them(builder: type[Builder]) -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool", "{ oops")
    log.call("c", "sys hi hello tool", "lost in a crash", rejects=["b"])
    log.call("d", "sys hi hello tool", "done", lineage={"retry": "1"})
    masked = log.build(builder())
    assert masked.stats.masked_tokens == {"rejected": 2, "undelivered": 4}
    built = log.build(builder(filters={"rejected": "train"}))
    assert built.stats.masked_tokens == {"undelivered": 4}
    trained = {span.call.call_id: one.trace.reward for one in built.expanded() for span in one.spans}
    assert trained == {"a": 1.0, "b": 1.0, "d": 1.0}
    credited = log.build(builder(filters={"rejected": "train"}, rewards="main_chain"))
    assert {one.trace_id: one.reward for one in credited.traces}["t.0/b"] is None


NEUTRAL = Sampling(**TRAINING_DEFAULTS.model_dump(exclude_none=True), grammar_source=FREE)
SAMPLINGS = {
    "plain": NEUTRAL,
    "cool": msgspec.structs.replace(NEUTRAL, temperature=0.7),
    "cut": msgspec.structs.replace(NEUTRAL, top_p=0.9, truncated=True),
    "bound": msgspec.structs.replace(NEUTRAL, grammar=True, grammar_source="strict_tools"),
    "punished": msgspec.structs.replace(NEUTRAL, presence_penalty=0.5),
    "open": msgspec.structs.replace(NEUTRAL, top_k=None),
    "maybe": msgspec.structs.replace(NEUTRAL, grammar_source="unknown"),
}
"""By the one word that was sampled with it."""


@pytest.mark.parametrize(
    ("filters", "masked"),
    [
        ({}, {}),
        ({"grammar": "train", "truncated": "train", "penalised": "train"}, {}),
        ({"grammar": "mask"}, {"bound": "filtered_grammar"}),
        ({"truncated": "mask"}, {"cut": "filtered_truncated_sampling"}),
        ({"penalised": "mask"}, {"punished": "filtered_penalised"}),
        ({"plain_only": True}, dict.fromkeys([*SAMPLINGS][1:], "filtered_not_plain")),
        (
            {"plain_only": True, "grammar": "mask"},
            dict.fromkeys([*SAMPLINGS][1:], "filtered_not_plain") | {"bound": "filtered_grammar"},
        ),
    ],
)
def test_a_filter_on_sampling_masks_what_was_sampled_so_and_leaves_the_rest(
    filters: dict[str, Any], masked: dict[str, str]
) -> None:
    log = Log()
    prompt = "sys"
    for number, (word, sampling) in enumerate(SAMPLINGS.items()):
        log.call(f"c{number}", prompt, word, sampling=sampling)
        prompt += f" {word} go"
    built = log.build(PrefixMerging(filters=filters))
    reasons = {node.call: node.masked for node in built.nodes if node.call is not None}
    assert reasons == {number: masked.get(word) for number, word in enumerate(SAMPLINGS)}
    assert built.stats.filtered == Counter(masked.values())
    assert built.stats.sampled_tokens == built.stats.trainable_tokens + len(masked)


def test_sessions_that_end_otherwise_have_nothing_to_train() -> None:
    log, only = session(), PrefixMerging(filters={"statuses": ["COMPLETED"]})
    assert len(log.build(only).traces) == 2
    built = log.build(only, status=Status.TIMED_OUT)
    assert (built.traces, built.stats.trainable_tokens) == ([], 0)
    assert built.stats.filtered == {"filtered_status": 3}
    assert built.stats.masked_tokens == {"filtered_status": 7, "side_call": 2}


def test_tokens_that_a_short_trace_shares_are_trained_on_one_that_is_kept() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello and very much to read", "no")
    log.call("c", "sys hi hello tool", "well then")
    log.call("d", "sys hi hello other", "yes")
    built = log.build(PrefixMerging(filters={"min_trainable_tokens": 3}))
    assert lines(built) == ["sys hi [hello] tool [well then]"]
    assert built.stats.masked_tokens == {"filtered_short": 2}
    assert built.stats.filtered == {"filtered_short": 2}


def test_a_session_that_is_short_altogether_is_one_trace_left_out() -> None:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("b", "sys hi hello tool", "no")
    built = log.build(PrefixMerging(filters={"min_trainable_tokens": 3}))
    assert (built.traces, built.stats.masked_tokens) == ([], {"filtered_short": 2})
    assert built.stats.filtered == {"filtered_short": 1}


def test_a_leaf_that_is_too_short_leaves_the_reward_to_what_is_trained() -> None:
    log = Log()
    log.call("a", "sys hi", "hello there friend")
    log.call("c", "new sys summary", "no")
    builder = PrefixMerging(rewards="leaf", filters={"min_trainable_tokens": 2})
    assert [(line(built, one), one.reward) for built in [log.build(builder)] for one in built.traces] == [
        ("sys hi [hello there friend]", 1.0)
    ]


@pytest.mark.parametrize("builder", BOTH)
def test_the_reward_is_all_traces_unless_the_task_says_otherwise(builder: type[Builder]) -> None:
    assert {trace.reward for trace in session().build(builder()).traces} == {1.0}


def rewarded(log: Log, builder: type[Builder], target: str, **config: Any) -> list[str]:
    built = log.build(builder(rewards=target, **config))
    return [line(built, trace) for trace in built.traces if trace.reward is not None]


def test_a_leaf_takes_the_reward_alone() -> None:
    assert rewarded(session(), PrefixMerging, "leaf") == ["sys hi [ask it] found [a long]"]
    assert rewarded(session(), PerRequest, "leaf") == ["sys hi ask it found [a long]"]


def test_a_main_chain_takes_it_and_sub_agents_and_dead_ends_do_not() -> None:
    log = session()
    log.call("dead", "sys hi ask it nothing found at all", "so what then")
    log.call("c", "sys hi ask it found a long end", "done")
    assert branches(log.build())["dead"] == "fork"
    assert rewarded(log, PrefixMerging, "main_chain") == ["sys hi [ask it] found [a long] end [done]"]
    assert rewarded(log, PerRequest, "main_chain") == [
        "sys hi [ask it]",
        "sys hi ask it found [a long]",
        "sys hi ask it found a long end [done]",
    ]


def test_a_main_chain_runs_through_stripped_answers_and_compactions_that_headers_tell_of() -> None:
    log = Log()
    main = {"thread": "m"}
    log.call("a", "sys hi", "hm hello there", lineage=main)
    log.call("b", "sys hi there tool", "sum up", lineage=main)
    log.call("sum", "sys hi there tool sum up briefly", "all well", lineage=main, kind="compaction")
    log.call("title", "title please", "Words", lineage=main, kind="title")
    log.call("other", "sub job", "aside", lineage={"thread": "s"})
    log.call("c", "new sys summary", "going on", lineage=main)
    log.call("d", "new sys summary going on tool", "done", lineage=main)
    continued = {"a": "root", "b": "stripped", "sum": None, "c": "compaction", "d": None}
    assert branches(log.build()) == continued | {"title": "root", "other": "root"}
    assert sorted(rewarded(log, PrefixMerging, "main_chain")) == [
        "new sys summary [going on] tool [done]",
        "sys hi [hm hello there]",
        "sys hi there tool [sum up] briefly [all well]",
    ]
    assert rewarded(log, PrefixMerging, "leaf") == ["new sys summary [going on] tool [done]"]


def test_a_main_chain_runs_through_a_compaction_that_was_asked_for_again() -> None:
    log = Log()
    main = {"thread": "m"}
    log.call("a", "sys hi", "hello there", lineage=main)
    log.call("sum", "sys hi hello there sum up", "all well", lineage=main, kind="compaction")
    log.call("unused", "new sys summary", "going under", lineage=main)
    log.call("c", "new sys summary", "going on", lineage=main)
    log.call("d", "new sys summary going on tool", "done", lineage=main)
    assert branches(log.build()) == {"a": "root", "sum": None, "unused": "compaction", "c": "retry", "d": None}
    wanted = ["sys hi [hello there] sum up [all well]", "new sys summary [going on] tool [done]"]
    assert rewarded(log, PrefixMerging, "main_chain") == wanted


def test_a_main_chain_runs_through_a_compaction_that_is_a_root_of_its_own() -> None:
    """As of CLIs whose compaction has another system prompt."""
    log = Log()
    thread = {"thread": "m"}
    log.call("a", "sys hi", "hello", lineage=thread)
    log.call("b", "sys hi hello more", "work", lineage=thread)
    log.call("sum", "summarise hi hello more work", "all well", lineage=thread, kind="compaction")
    log.call("c", "sys all well", "going on", lineage=thread)
    log.call("d", "sys all well going on last", "done", lineage=thread)
    assert sorted(rewarded(log, PrefixMerging, "main_chain")) == [
        "summarise hi hello more work [all well]",
        "sys all well [going on] last [done]",
        "sys hi [hello] more [work]",
    ]


def test_a_main_chain_begins_where_a_thread_cleared_its_history() -> None:
    log = Log()
    main = {"thread": "m"}
    log.call("a", "sys hi", "hello there", lineage=main)
    log.call("b", "sys anew", "done", lineage=main)
    assert rewarded(log, PrefixMerging, "main_chain") == ["sys anew [done]"]


@pytest.mark.parametrize("builder", BOTH)
@pytest.mark.parametrize("mode", ["leaf", "main_chain"])
@pytest.mark.parametrize("kind", ["title", "side"])
def test_a_side_call_that_a_task_trains_is_credited_with_nothing_but_its_own_rewards(
    kind: str, mode: str, builder: type[Builder]
) -> None:
    log = Log()
    main = {"thread": "m"}
    log.call("early", "title please", "A Title", lineage=main, kind=kind)
    log.call("a", "sys hi", "hello", lineage=main)
    log.call("sum", "sys hi hello sum up", "short", lineage=main, kind="compaction")
    log.call("between", "title again", "Another", lineage=main, kind=kind)
    log.call("b", "sys short", "done", lineage=main)
    log.call("late", "title now", "The Last", lineage=main, kind=kind)
    config: dict[str, Any] = {"filters": {"kinds": ["main", "compaction", kind]}}
    assert len(rewarded(log, builder, "all", **config)) == len(log.build(builder(**config)).traces)
    credited = rewarded(log, builder, mode, **config)
    assert credited
    assert not [trace for trace in credited if "title" in trace]


@pytest.mark.parametrize("mode", ["leaf", "main_chain"])
def test_where_side_calls_alone_are_trained_no_trace_has_the_reward(mode: str) -> None:
    log = session()
    assert rewarded(log, PrefixMerging, mode, filters={"kinds": ["title"]}) == []


def test_a_dead_end_that_goes_on_from_the_chain_trains_none_of_its_tokens() -> None:
    """The chain left the first answer, a longer branch goes on from it: each has a trace, and only the chain's has the reward."""
    log = Log()
    log.call("a", "sys hi", "hello you")
    log.call("dead", "sys hi hello you and much more to read", "nothing")
    log.call("c", "sys hi hello there", "done")
    assert rewarded(log, PrefixMerging, "main_chain") == ["sys hi [hello] there [done]", "sys hi hello [you]"]


@pytest.mark.parametrize("builder", BOTH)
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"rewards": "best"},
            r"builder\.config\.rewards: Input should be 'all', 'main_chain' or 'leaf' \(got 'best'\)",
        ),
        ({"merge_all": True}, r"builder\.config\.merge_all: no such setting .* \(got True\)"),
        (
            {"filters": {"kind": "main"}},
            r"builder\.config\.filters\.kind: no such setting .* kinds, max_tokens, min_trainable_tokens",
        ),
        ({"filters": {"kinds": ["main", "subagents"]}}, r"builder\.config\.filters\.kinds\.1: Input should be 'main'"),
        ({"filters": {"kinds": []}}, r"builder\.config\.filters\.kinds: .* at least 1"),
        ({"filters": {"statuses": ["DONE"]}}, r"builder\.config\.filters\.statuses\.0: Input should be 'COMPLETED'"),
        ({"filters": {"grammar": "drop"}}, r"builder\.config\.filters\.grammar: Input should be 'train' or 'mask'"),
        ({"filters": {"plain_only": "yes"}}, r"builder\.config\.filters\.plain_only: Input should be a valid boolean"),
        ({"filters": {"max_tokens": 0}}, r"builder\.config\.filters\.max_tokens: Input should be greater than 0"),
        ({"filters": {"min_trainable_tokens": "5"}}, r"min_trainable_tokens: Input should be a valid integer"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused(builder: type[Builder], config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        builder(**config)


def chain() -> Log:
    log = Log()
    log.call("a", "sys hi", "hello <end>")
    log.call("b", "sys hi hello <end> tool 1", "ok <end>")
    log.call("c", "sys hi hello <end> tool 1 ok <end> tool 2", "done <end>")
    return log


def test_per_request_makes_one_trace_per_call_over_the_same_tree() -> None:
    built = chain().build(PerRequest())
    assert lines(built) == [
        "sys hi [hello <end>]",
        "sys hi hello <end> tool 1 [ok <end>]",
        "sys hi hello <end> tool 1 ok <end> tool 2 [done <end>]",
    ]
    assert built.nodes == chain().build().nodes


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


def test_other_systems_end_of_turn_setting_is_taken_and_changes_nothing() -> None:
    assert chain().build(PrefixMerging(end_of_turn_token_id=5)) == chain().build()
    with pytest.raises(InputError, match="end_of_turn_token_id"):
        PrefixMerging(end_of_turn_token_id="5")  # as a task may have it


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
