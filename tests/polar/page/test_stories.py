"""The token lens equals the trajectory, in whatever portions it is read; and what only the lake knows is found there."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace as replace_story
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analytics.live.session_rows import SessionRow
from polar.page.from_lake import scored_logprobs, timeline
from polar.page.groups import common_calls
from polar.page.stories import current_wait, first_trained, lens
from polar.show.assembly import Log, assemble
from polar.show.document import document
from tests.analytics.story import NOON, story, write
from tests.polar.show.recording import TASK, a_session, row
from topics.completions import CallRecord, Open
from topics.environment.settings import Settings
from topics.types.completion import PolicySpan
from topics.types.session import Phase
from topics.types.tokens import pack_logprobs
from topics.types.trajectory import ROOT, Node, Trace, expand
from topics.verifications import Verification

RECORDING = a_session()
TRAJECTORY = RECORDING.build()


def told() -> Log:
    log = Log("claim")
    records: list[CallRecord] = [Open("t.0", 1, "claim"), *RECORDING.calls]
    for at, record in enumerate(records):
        log = log.take(record, at)
    return log


STORY = assemble(TASK, row(log_offset=0), told(), TRAJECTORY)


def test_a_document_without_tokens_is_made_without_them(tmp_path: Path) -> None:
    """Traces of one long prompt: as lists their tokens would be 100 times 200,000 of three kinds, gigabytes."""
    settings = Settings(data=tmp_path)
    prompt = Node(ROOT, np.arange(200_000, dtype="<i4").tobytes())
    answers = [Node(0, b"\1\0\0\0", logprobs=pack_logprobs(np.zeros(1, np.float32)), call=0) for _ in range(100)]
    traces = [Trace(f"t.0/{n}", n, [n]) for n in range(1, 101)]
    long = replace(TRAJECTORY, nodes=[prompt, *answers], traces=traces)
    tracemalloc.start()
    found = document(replace_story(STORY, trajectory=long), settings, with_texts=False, with_tokens=False)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50_000_000
    assert [trace["tokens"] for trace in found["traces"]] == [200_001] * 100
    whole = document(STORY, settings, with_texts=False)
    lengths = [len(trace["token_ids"]) for trace in whole["traces"]]
    left_out = {"token_ids", "loss_mask", "logprobs", "runs"}, {"prompt_rest", "sampled", "logprobs"}
    short = document(STORY, settings, with_texts=False, with_tokens=False)
    assert [trace.pop("tokens") for trace in short["traces"]] == lengths
    for trace in whole["traces"]:
        assert [trace.pop(name) for name in left_out[0]]
    for call in whole["calls"]:
        assert [call["record"].pop(name) for name in left_out[1]]
    assert short == whole


@given(st.sampled_from(range(len(TRAJECTORY.traces))), st.integers(1, 7))
def test_the_lens_equals_the_trajectory_in_whatever_portions_it_is_read(number: int, limit: int) -> None:
    trace = TRAJECTORY.traces[number]
    expanded = expand(TRAJECTORY, trace)
    scored = [-float(n) for n in range(int(expanded.loss_mask.sum()))]
    found, total = lens(STORY, TRAJECTORY, trace, 0, 1000, scored)
    assert total == len(found) == len(expanded.token_ids)
    assert [token.id for token in found] == expanded.token_ids.tolist()
    assert [token.trained for token in found] == expanded.loss_mask.astype(bool).tolist()
    trained = [token for token in found if token.trained]
    assert first_trained(TRAJECTORY, trace) == (found.index(trained[0]) if trained else None)
    assert [token.logprob for token in trained] == expanded.logprobs[expanded.loss_mask == 1].tolist()
    assert [token.scored for token in trained] == scored
    assert all(token.call is None or STORY.calls[token.call - 1].call.sampled_tokens for token in found)
    assert all((token.reason is None) == (token.trained or token.call is None) for token in found)
    assert not any(token.scored for token in found if not token.trained)
    portions = []
    for start in range(0, total, limit):
        portions += lens(STORY, TRAJECTORY, trace, start, limit, scored)[0]
    assert portions == found


def test_a_sample_without_a_call_does_not_part_the_others() -> None:
    alike = common_calls([STORY, STORY])
    assert alike > 0
    assert common_calls([STORY, replace_story(STORY, calls=[]), STORY]) == alike
    assert common_calls([STORY, replace_story(STORY, calls=[])]) == 0


def test_tokens_have_the_version_that_sampled_them_also_where_weights_changed_within_an_answer() -> None:
    spans = [PolicySpan(3, 0, 1), PolicySpan(4, 1, 2)]
    calls = [replace(call, policy_version=3, policy_spans=spans) for call in TRAJECTORY.calls]
    changed = replace(TRAJECTORY, calls=calls)
    found, _ = lens(STORY, changed, changed.traces[0], 0, 1000, None)
    assert {token.version for token in found if token.call is None} == {None}
    assert [token.version for token in found if token.call == 1] == [3, 4]


@pytest.fixture
def lake(tmp_path: Path) -> Settings:
    settings = Settings(data=tmp_path)
    facts: dict[str, Any] = {
        "server": "http://s",
        "tokens": 2,
        "median": 0.1,
        "p99": 0.1,
        "largest": 0.1,
        "limit": 0.5,
        "over": 0,
    }
    scores = {"a": [-1.0, math.nan, -3.0], "b": [math.nan, -2.0, math.nan]}
    verifications = [
        (100 + n, Verification("mend.0", "mend.0/c", engine, verified_at=NOON + n,
                               logprobs=pack_logprobs(np.array(logprobs, np.float32)), **facts))
        for n, (engine, logprobs) in enumerate(scores.items())
    ]  # fmt: skip
    write(settings.lake_folder, [*story(), *verifications])
    return settings


def test_the_scores_of_several_engines_are_those_of_one_trace(lake: Settings) -> None:
    assert scored_logprobs(lake, "mend.0/c") == [-1.0, -2.0, -3.0]
    assert scored_logprobs(lake, "mend.0/other") is None
    assert scored_logprobs(lake, "'; DROP VIEW sessions; --") is None


def test_an_older_session_has_the_timeline_of_the_lake(lake: Settings) -> None:
    found = [
        (
            one.attempt,
            one.stage,
            one.worker,
            one.outcome,
            None if one.finished_at is None else (one.finished_at - NOON) // 1000,
        )
        for one in timeline(lake, "mend.0")
    ]
    assert found == [
        (1, "init", "worker-0", "finished", 3),
        (1, "run", "worker-0", None, None),
        (2, "init", "worker-1", "finished", 23),
        (2, "run", "worker-1", "COMPLETED", 34),
        (2, "evaluate", "worker-1", "finished", 38),
    ]
    first, *_ = timeline(lake, "mend.0")
    assert (first.queued_at, first.claimed_at) == (NOON, NOON + 1000)


def test_without_a_lake_there_is_nothing_to_add(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    assert scored_logprobs(settings, "t.0/c") is None
    assert timeline(settings, "t.0") == []


@pytest.mark.parametrize("phase", Phase)
def test_a_session_that_waits_for_a_slot_has_the_wait_on_its_timeline(phase: Phase) -> None:
    waits = {Phase.QUEUED: "init", Phase.READY: "run", Phase.RAN: "evaluate"}
    found = current_wait(SessionRow("t.0", "t", 0, phase=phase.value, attempt=2, changed_at=NOON))
    assert [(one.attempt, one.stage, one.queued_at, one.claimed_at) for one in found] == (
        [(2, waits[phase], NOON, None)] if phase in waits else []
    )
