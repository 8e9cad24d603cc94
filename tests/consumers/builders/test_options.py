"""What a task may ask of the builders that come with Polar: filters with their counts, and whom the reward is for."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.builders.base import Builder
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from tests.consumers.token_tree.transcripts import Log, branches, line, lines
from topics.types.errors import InputError
from topics.types.session import Status

BOTH: list[type[Builder]] = [PrefixMerging, PerRequest]


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


def rewarded(log: Log, builder: type[Builder], target: str) -> list[str]:
    built = log.build(builder(rewards=target))
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
    log.call("other", "sub job", "aside", lineage={"thread": "s"})
    log.call("c", "new sys summary", "going on", lineage=main)
    log.call("d", "new sys summary going on tool", "done", lineage=main)
    assert branches(log.build()) == {"a": "root", "b": "stripped", "other": "root", "c": "compaction", "d": None}
    assert sorted(rewarded(log, PrefixMerging, "main_chain")) == [
        "new sys summary [going on] tool [done]",
        "sys hi [hm hello there]",
        "sys hi there tool [sum up]",
    ]
    assert rewarded(log, PrefixMerging, "leaf") == ["new sys summary [going on] tool [done]"]


def test_a_main_chain_runs_through_a_compaction_that_was_asked_for_again() -> None:
    log = Log()
    main = {"thread": "m"}
    log.call("a", "sys hi", "hello there", lineage=main)
    log.call("unused", "new sys summary", "going under", lineage=main)
    log.call("c", "new sys summary", "going on", lineage=main)
    log.call("d", "new sys summary going on tool", "done", lineage=main)
    assert branches(log.build()) == {"a": "root", "unused": "compaction", "c": "retry", "d": None}
    wanted = ["new sys summary [going on] tool [done]", "sys hi [hello there]"]
    assert rewarded(log, PrefixMerging, "main_chain") == wanted


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
        ({"filters": {"kind": "main"}}, r"builder\.config\.filters\.kind: no such setting .* kinds, max_tokens"),
        ({"filters": {"kinds": ["main", "subagents"]}}, r"builder\.config\.filters\.kinds\.1: Input should be 'main'"),
        ({"filters": {"kinds": []}}, r"builder\.config\.filters\.kinds: .* at least 1"),
        ({"filters": {"statuses": ["DONE"]}}, r"builder\.config\.filters\.statuses\.0: Input should be 'COMPLETED'"),
        ({"filters": {"max_tokens": 0}}, r"builder\.config\.filters\.max_tokens: Input should be greater than 0"),
        ({"filters": {"min_trainable_tokens": "5"}}, r"min_trainable_tokens: Input should be a valid integer"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused(builder: type[Builder], config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        builder(**config)
