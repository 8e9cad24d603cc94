from __future__ import annotations

import msgspec
import numpy as np
import pytest

from consumers.builders.base import Builder, BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.builders.prefix_merging import PrefixMerging
from tests.consumers.token_tree.transcripts import (
    Log,
    branches,
    build_record,
    completion,
    lines,
    parents,
)
from topics.environment import registry
from topics.types.completion import TokenDelta
from topics.types.errors import InputError, Kind, SessionError
from topics.types.session import Status
from topics.types.tokens import pack_ids
from topics.types.trajectory import Trajectory


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


@pytest.mark.parametrize("name", ["prefix_merging", "per_request"])
def test_builders_are_found_by_name_and_refuse_settings_they_do_not_have(name: str) -> None:
    builder: type[Builder] = registry.load(registry.Kind.BUILDER, name)
    builder()
    with pytest.raises(InputError, match=r"builder\.config\.merge_all: no such setting .* \(got True\)"):
        builder(merge_all=True)


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
