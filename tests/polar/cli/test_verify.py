"""`polar verify` tells each mismatch between what is recorded and what an engine says. Kafka is real; the server is a stand-in in vLLM's
wire form, whose "model" gives each token a logprob by everything that stands before it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from polar.verification import plan, scoring
from tests.polar.cli.commands import polar, write
from tests.polar.cli.test_commands import read
from tests.serving import serving_by_path
from tests.waiting import eventually
from topics import fleet, trajectories, verifications
from topics.environment.settings import Settings
from topics.fleet import FleetState, PolicyVersion
from topics.types.completion import Sampling
from topics.types.session import Status
from topics.types.task import TRAINING_DEFAULTS
from topics.types.tokens import pack_ids, pack_logprobs, unpack_logprobs
from topics.types.trajectory import Call, Node, Trace, Trajectory
from topics.verifications import Verification

VOCABULARY = 40
NEUTRAL = Sampling(**TRAINING_DEFAULTS.model_dump(exclude_none=True))
RECORDED = 1
"""The weights that sampled what is recorded."""


@dataclass
class Server:
    """One that scores as vLLM does."""

    weights: int = RECORDED
    name: str = "m"
    versions: list[str] = field(default_factory=list)
    """Names of its weights, one for each time that it is asked; the last one stays. Empty: it has no such route."""
    max_logprobs: int | None = None
    interrupts: bool = False
    """Answers a prompt only after the command has got Ctrl-C."""
    meanwhile: Callable[[], object] | None = None
    """Called while it scores."""

    def answer(self, path: str, body: Any) -> tuple[int, object]:
        if path == "/v1/models":
            return 200, {"data": [{"id": self.name}]}
        if path == "/weight_info" and self.versions:
            return 200, {"weight_version": self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]}
        if path != "/v1/completions":
            return 404, {"detail": "Not Found"}
        if self.interrupts:
            os.kill(os.getpid(), signal.SIGINT)
        if self.meanwhile is not None:
            self.meanwhile()
        wanted = body["prompt_logprobs"]
        if self.max_logprobs is not None and not 0 <= wanted <= self.max_logprobs:
            reason = f"Requested prompt logprobs of {wanted}, which is greater than max allowed: {self.max_logprobs}"
            return 400, {"error": {"message": reason}}
        ids = body["prompt"]
        scored = [None, *(self._entries(ids[:end], ids[end], wanted) for end in range(1, len(ids)))]
        return 200, {"choices": [{"text": "", "prompt_logprobs": scored}]}

    def _entries(self, before: list[int], token: int, wanted: int) -> dict[str, Any]:
        found = distribution(before, self.weights)
        likeliest = np.argsort(-found)[: len(found) if wanted < 0 else wanted]
        return {str(each): {"logprob": float(found[each])} for each in dict.fromkeys([token, *likeliest.tolist()])}


def distribution(before: list[int], weights: int) -> np.ndarray:
    """Logprobs of the vocabulary after some tokens."""
    seed = zlib.crc32(np.array([weights, *before], np.int32).tobytes())
    logits = np.random.default_rng(seed).normal(0, 2, VOCABULARY)
    found: np.ndarray = logits - np.log(np.exp(logits).sum())
    return found


def trajectory(index: int, *, changed: int | None = None, second: Sampling | None = None, **fields: Any) -> Trajectory:
    """A session of two calls, sampled by the weights RECORDED; `changed`: the prompt's token that is recorded as another."""
    drawn = np.random.default_rng(index).integers(0, VOCABULARY, 20).tolist()
    parts = [drawn[:6], drawn[6:11], drawn[11:14], drawn[14:]]
    nodes: list[Node] = []
    before: list[int] = []
    for number, part in enumerate(parts):
        logprobs = None
        if number % 2:
            each = [distribution(before + part[:at], RECORDED)[token] for at, token in enumerate(part)]
            logprobs = pack_logprobs([float(value) for value in each])
        nodes.append(Node(number - 1, pack_ids(part), logprobs, number // 2 if number % 2 else None))
        before += part
    if changed is not None:
        prompt = [*parts[0]]
        prompt[changed] = (prompt[changed] + 1) % VOCABULARY
        nodes[0] = Node(-1, pack_ids(prompt))
    known: dict[str, Any] = {
        "model_served": "m",
        "engine": "default",
        "logprobs_mode": "processed",
        "sampling": NEUTRAL,
    }
    known |= fields
    calls = [Call(f"c{number}", "main", "answered", "openai_chat", 0, 0, **known) for number in (0, 1)]
    calls[1] = msgspec.structs.replace(calls[1], sampling=second or NEUTRAL)
    trace = Trace(f"t.{index}/c1", 3, [1, 3])
    return Trajectory(
        f"t.{index}", "t", index, 9, 1, Status.COMPLETED, "prefix_merging", "shell", nodes=nodes, calls=calls, traces=[trace]
    )  # fmt: skip


def record(settings: Settings, *made: Trajectory) -> None:
    write(settings, *((trajectories.TOPIC, each.session_id, each) for each in made))


@contextmanager
def verifying(server: Server) -> Iterator[list[str]]:
    """The command in front of a server."""
    with serving_by_path(server.answer) as (url, _):
        yield ["verify", "t", "--engine", url, "--format", "json"]


def verified(server: Server, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, what is reported of the engine, and stderr."""
    with verifying(server) as command:
        code, stdout, stderr = polar(*command, *options)
    return code, json.loads(stdout)["engines"].get("default", {}), stderr


def test_what_was_recorded_is_what_the_engine_says_and_the_results_are_on_the_log(settings: Settings) -> None:
    record(settings, *(trajectory(index) for index in range(3)))
    code, found, stderr = verified(Server())
    assert code == 0, stderr
    assert (found["traces"], found["tokens"], found["unscored"], found["traces_over"]) == (3, 33, {}, [])
    assert found["max"] < 1e-6
    decoded = [verifications.CODEC.decode(each.value or b"") for each in read(settings, verifications.TOPIC)]
    results = [each for each in decoded if isinstance(each, Verification)]
    assert len(results) == len(decoded) == 3
    assert {each.trace_id: each.tokens for each in results} == {f"t.{index}/c1": 11 for index in range(3)}
    [first] = [each for each in results if each.session_id == "t.0"]
    nodes = trajectory(0).nodes
    expected = np.concatenate([unpack_logprobs(nodes[at].logprobs or b"") for at in (1, 3)])
    assert unpack_logprobs(first.logprobs) == pytest.approx(expected, abs=1e-6)
    assert (first.over, first.unscored, first.policy_version, first.output) == (0, {}, None, None)


@pytest.mark.parametrize("changed", [0, 3, 5])
def test_one_changed_token_of_a_recorded_prompt_is_found(settings: Settings, changed: int) -> None:
    record(settings, trajectory(0), trajectory(1, changed=changed))
    code, found, stderr = verified(Server())
    assert code == 1
    [over] = found["traces_over"]
    assert over["trace_id"] == found["worst_trace"]["trace_id"] == "t.1/c1"
    assert {each["call_id"] for each in over["calls"]} == {"c0", "c1"}
    assert "t.1/c1 is over the limit: p99" in stderr
    assert f"most in the call {over['calls'][0]['call_id']}: mean" in stderr
    assert "the mean of 2 of its calls" in stderr


def test_another_model_behind_the_url_is_found_by_its_scores_or_by_its_name(settings: Settings) -> None:
    record(settings, trajectory(0))
    code, found, stderr = verified(Server(weights=2))
    assert (code, len(found["traces_over"])) == (1, 1)
    assert "other weights, another model or other prompts than the log says" in stderr
    code, found, stderr = verified(Server(weights=2, name="other"))
    assert (code, found["tokens"], found["unscored"]) == (1, 0, {"other_model": 11})
    assert "no token could be scored" in stderr


def test_weights_that_were_reloaded_without_a_publication_are_found(settings: Settings) -> None:
    [publication] = write(settings, (fleet.TOPIC, "policy", PolicyVersion(7)))
    record(settings, trajectory(0, policy_version=7, publication=publication))
    assert verified(Server(versions=["7"]))[0] == 0
    code, found, _ = verified(Server(weights=2, versions=["7"]))
    assert (code, len(found["traces_over"])) == (1, 1)
    code, found, stderr = verified(Server(weights=2, versions=["8"]))
    assert (code, found["unscored"]) == (0, {"weights_changed": 11})
    assert "the engines serve other weights now" in stderr


def test_what_other_weights_sampled_than_are_served_now_is_left_out(settings: Settings) -> None:
    old, new = write(settings, *((fleet.TOPIC, "policy", PolicyVersion(7)) for _ in range(2)))
    record(settings, trajectory(0, policy_version=7, publication=old), trajectory(1, policy_version=7, publication=new))
    code, found, stderr = verified(Server())
    assert (code, found["traces"], found["unscored"]) == (0, 1, {"weights_changed": 11})
    assert "not scored: 11 weights_changed tokens" in stderr


def test_a_score_during_which_weights_changed_says_nothing(settings: Settings) -> None:
    record(settings, trajectory(0, policy_version=7))
    code, found, _ = verified(Server(versions=["7", "8"]))
    assert (code, found["unscored"]) == (0, {"weights_changed": 11})


@pytest.mark.parametrize("states", [(FleetState(2, paused=True),), (FleetState(2, paused=True), FleetState(3))])
def test_a_score_during_which_the_fleet_was_paused_says_nothing(
    settings: Settings, states: tuple[FleetState, ...]
) -> None:
    write(settings, (fleet.TOPIC, "state", FleetState(1)))
    record(settings, trajectory(0))
    paused = Server(weights=2, meanwhile=lambda: write(settings, *((fleet.TOPIC, "state", each) for each in states)))
    code, found, _ = verified(paused)
    assert (code, found["unscored"], found["traces_over"]) == (0, {"weights_changed": 11}, [])


@pytest.mark.parametrize("max_logprobs", [None, 5])
def test_a_distribution_that_needs_the_whole_vocabulary_is_scored_where_the_server_returns_it(
    settings: Settings, max_logprobs: int | None
) -> None:
    cooler = msgspec.structs.replace(NEUTRAL, temperature=0.7)
    record(settings, trajectory(0, second=cooler))
    code, found, _ = verified(Server(max_logprobs=max_logprobs))
    if max_logprobs is None:
        assert (code, found["tokens"], len(found["traces_over"])) == (1, 11, 1), "it was sampled at temperature 1"
    else:
        assert (code, found["tokens"], found["unscored"]) == (0, 5, {"vocabulary": 6})


@pytest.mark.parametrize(
    ("second", "limited", "most"),
    [
        ({"top_k": 5}, "polar.verification.run.ENTRIES", 119),
        ({"top_k": 5}, "proxy.engines.response.MAX_BODY_BYTES", 3000),
        ({"temperature": 0.7}, "proxy.engines.response.MAX_BODY_BYTES", 3000),
    ],
)
def test_of_an_answer_that_would_be_too_large_the_plain_part_is_scored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any], limited: str, most: int
) -> None:
    monkeypatch.setattr(limited, most)
    record(settings, trajectory(0, second=msgspec.structs.replace(NEUTRAL, **second)))
    code, found, _ = verified(Server())
    assert (code, found["tokens"], found["unscored"]) == (0, 5, {"vocabulary": 6})


def test_a_server_that_fails_costs_the_tokens_and_not_the_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(scoring, "COMPLETIONS", "/nowhere")
    record(settings, trajectory(0))
    code, found, stderr = verified(Server())
    assert (code, found["unscored"]) == (1, {plan.Unscored.FAILED: 11})
    assert "no token could be scored" in stderr


def test_after_ctrl_c_it_says_what_was_verified_so_far(settings: Settings) -> None:
    record(settings, *(trajectory(index) for index in range(3)))
    with verifying(Server(interrupts=True)) as command:
        code, stdout, stderr = polar(*command, "--concurrency", "1")
    remaining = json.loads(stdout)["remaining_traces"]
    assert code == 1
    assert remaining >= 1
    assert f"stopped: {remaining} traces are not verified" in stderr


def test_people_get_a_table_by_engine(settings: Settings) -> None:
    record(settings, trajectory(0))
    with verifying(Server()) as command:
        code, stdout, _ = polar(*command[:-2])
    assert code == 0
    heads, _, row = stdout.splitlines()[:3]
    assert heads.split() == ["engine", "traces", "tokens", "median", "p99", "max", "over", "worst", "trace"]
    assert row.split()[:3] == ["default", "1", "11"]
    assert "t.0/c1" in row


def test_a_share_of_the_sessions_is_always_the_same(settings: Settings) -> None:
    record(settings, *(trajectory(index) for index in range(9)))
    found = []
    for share in ("50%", "50 %", "100%"):
        with verifying(Server()) as command:
            code, stdout, _ = polar("verify", "--sample", share, *command[2:])
        assert code == 0
        found.append(json.loads(stdout)["sessions"])
    assert found[0] == found[1] < found[2] == 9
    with verifying(Server()) as command:
        _, stdout, stderr = polar(*command, "--sessions", "2")
    assert json.loads(stdout)["sessions"] == 2
    assert "only the newest 2 of 9 sessions are verified" in stderr


@pytest.mark.parametrize("share", ["0%", "101%", "1", "x%"])
def test_a_share_is_a_percentage(share: str) -> None:
    code, _, stderr = polar("verify", "--sample", share)
    assert code == 2
    assert "--sample: expected a percentage" in stderr


def test_sessions_must_be_chosen_and_there_be_any(settings: Settings) -> None:
    code, _, stderr = polar("verify")
    assert code == 2
    assert "name tasks, or choose sessions with --sample 1%" in stderr
    with verifying(Server()) as command:
        code, _, stderr = polar(*command)
    assert code == 3
    assert "no finished session is among those that you chose" in stderr
    assert settings.kafka


def test_the_topic_is_made_where_an_older_system_has_none(settings: Settings) -> None:
    from topics.log import kafka as clients

    async def delete() -> None:
        admin = clients.admin(settings)
        await admin.start()
        name = verifications.TOPIC.full_name(settings.namespace)
        await admin.delete_topics([name])

        async def is_gone() -> bool:
            return name not in {topic["topic"] for topic in await admin.describe_topics()}

        # The broker answers before every metadata request shows it.
        await eventually(is_gone)
        await admin.close()

    asyncio.run(delete())
    record(settings, trajectory(0))
    assert verified(Server())[0] == 0
