"""slime's rollout function: batches, versions, ids, positions and refusals.

No package index has slime, so these are plain stand-ins with the fields and routes of THUDM/slime at 624b824a8: `Sample` and its
`from_dict` (`slime/utils/types.py`), the outputs (`slime/rollout/base_types.py`), `Dataset` (`slime/utils/data.py`), a data source
(`slime/rollout/data_source.py`), the router's `/workers` and an engine's `/get_weight_version`
(`slime/rollout/sglang_rollout.py`, `slime/backends/sglang_utils/sglang_engine.py`). `Sessions` stands for a Polar system.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Self, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.advantages import advantages
from polar.trainer.groups import Group
from polar.trainer.prompt_tasks import PromptTasks
from polar.trainer.slime_batch import ESTIMATORS, WANTED, Place, check, eval_samples, train_batch, weight_version
from polar.trainer.training_run import TrainingRun
from tests.polar.trainer.sessions import Sessions
from tests.polar.trainer.trees import groups, rewarded_tokens
from tests.polar.trainer.writing import trajectory
from topics.types.errors import InputError, NotReadyError


class SampleStatus(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    Status: ClassVar = SampleStatus

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str = ""
    label: str | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    weight_versions: list[str] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    status: SampleStatus = SampleStatus.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cls(**{**data, "status": SampleStatus(data["status"])})


@dataclass
class RolloutFnTrainOutput:
    samples: list[list[list[Sample]]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    data: dict[str, dict[str, Any]]


class Dataset:
    def __init__(self, path: Path, *, prompt_key: str, label_key: str, metadata_key: str, **_: None) -> None:
        rows = map(json.loads, path.read_text().splitlines())
        self.samples = [
            Sample(prompt=row[prompt_key], label=row[label_key], metadata=row.get(metadata_key, {})) for row in rows
        ]


class DataSource:
    """The prompts p0, p1, p2, p0, …"""

    def __init__(self, samples_per_prompt: int) -> None:
        self.metadata: dict[str, Any] = {}
        self.group_index = 0
        self._samples = samples_per_prompt

    def get_samples(self, number: int) -> list[list[Sample]]:
        first, self.group_index = self.group_index, self.group_index + number
        return [
            [Sample(at, at * self._samples + index, prompt=f"p{at % 3}") for index in range(self._samples)]
            for at in range(first, first + number)
        ]


class Engines(ThreadingHTTPServer):
    """A router and its engines in one server."""

    def __init__(self, versions: Sequence[str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                here = f"http://{self.headers['Host']}"
                name, _, route = self.path.strip("/").rpartition("/")
                body: dict[str, Any] = {"workers": [{"url": f"{here}/{at}"} for at in range(len(versions))]}
                if route == "get_weight_version":
                    body = {"weight_version": versions[int(name)]}
                self.send_response(200 if route in ("workers", "get_weight_version") else 404)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.versions = versions
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def versions() -> list[str]:
    """What the engines answer; the arguments of `arguments` lead to them."""
    return ["7", "7"]


@pytest.fixture
def args(versions: list[str]) -> Iterator[SimpleNamespace]:
    server = Engines(versions)
    yield arguments(sglang_router_port=server.server_address[1])
    server.shutdown()
    server.server_close()


def arguments(**more: Any) -> SimpleNamespace:
    """slime's arguments, as far as they are read."""
    wanted = {name: value for name, (value, _) in WANTED.items()}
    numbers = {"n_samples_per_prompt": 3, "rollout_batch_size": 2, "rollout_temperature": 0.7}
    algorithm = {"advantage_estimator": "grpo", "grpo_std_normalization": True, "sglang_router_ip": "127.0.0.1"}
    return SimpleNamespace(**{**wanted, **numbers, **algorithm, **more})


def body(sample: Sample) -> dict[str, Any]:
    return {"instruction": sample.prompt, "agent": {"harness": "pi"}}


@pytest.fixture
def slime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`polar.trainer.slime`, imported beside the stand-ins."""
    names: dict[str, dict[str, Any]] = {
        "slime": {},
        "slime.rollout": {},
        "slime.rollout.base_types": {
            "RolloutFnTrainOutput": RolloutFnTrainOutput,
            "RolloutFnEvalOutput": RolloutFnEvalOutput,
        },
        "slime.utils": {},
        "slime.utils.data": {"Dataset": Dataset},
        "slime.utils.types": {"Sample": Sample},
    }
    for name, attributes in names.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    yield import_module("polar.trainer.slime")
    del sys.modules["polar.trainer.slime"]


def test_a_batch_has_every_session_s_rollout(slime: Any, args: SimpleNamespace) -> None:
    sessions, source = Sessions(), DataSource(3)
    rollouts = slime.Rollouts(PromptTasks(body, run="r1"), cast(TrainingRun, sessions))
    output = rollouts.train(args, source)
    assert sessions.published == [7]
    assert [request.instruction for request in sessions.requests] == ["p0", "p1"]
    assert [[[one.index for one in rollout] for rollout in prompt] for prompt in output.samples] == [
        [[0], [1], [2]],
        [[3], [4], [5]],
    ]
    good, bad, none = (rollout[0] for rollout in output.samples[1])
    assert (good.tokens, good.loss_mask, good.rollout_log_probs) == ([1, 2, 3, 10, 0], [1, 1], [-0.5, -0.25])
    assert [good.reward, bad.reward] == pytest.approx([1, -1], abs=1e-5)
    assert [one.metadata["raw_reward"] for one in (good, bad, none)] == [1.0, 0.0, 0.5]
    assert (none.reward, none.tokens, none.loss_mask, none.response_length) == (0.0, [1, 2, 3, 10], [0], 1)
    assert output.metrics["polar/null_rewards"] == 2
    assert output.metrics["polar/groups_left_out"] == 1
    assert source.metadata == {"polar": sessions.state_dict()}


def test_a_resumed_process_requests_the_same_ids_and_a_later_batch_others(slime: Any, args: SimpleNamespace) -> None:
    """The dataset has three prompts, so the second batch has a prompt of the first."""
    found = []
    source = DataSource(3)
    for _ in range(2):
        at_the_checkpoint = copy.deepcopy(source)
        sessions = Sessions()
        rollouts = slime.Rollouts(PromptTasks(body, run="r1"), cast(TrainingRun, sessions))
        rollouts.train(args, source)
        rollouts.train(args, source)
        found.append([request.task_id for request in sessions.requests])
        source = at_the_checkpoint
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
    assert [name.rpartition("-")[0] for name in found[0]] == ["r1-0", "r1-1", "r1-2", "r1-3"]


def test_evaluations_leave_sessions_without_a_reward_out(
    slime: Any, args: SimpleNamespace, versions: list[str], tmp_path: Path
) -> None:
    (tmp_path / "eval.jsonl").write_text('{"text": "a", "answer": "1"}\n{"text": "b", "answer": "2"}\n')
    args.eval_datasets = [
        SimpleNamespace(
            name="held/out",
            path=tmp_path / "eval.jsonl",
            input_key="text",
            label_key="answer",
            metadata_key="metadata",
            n_samples_per_eval_prompt=2,
            temperature=0.0,
        )
    ]
    sessions = Sessions()
    rollouts = slime.Rollouts(PromptTasks(body, run="r1"), cast(TrainingRun, sessions))
    output = rollouts.evaluate(args, 0)
    found = output.data["held/out"]
    assert (found["rewards"], found["truncated"]) == ([1.0, 1.0], [False, False])
    assert [(one.group_index, one.index, one.tokens[-2:]) for one in found["samples"]] == [
        (0, 0, [10, 0]),
        (1, 2, [10, 0]),
    ]
    assert {request.sampling.temperature for request in sessions.requests} == {0.0}
    versions[:] = ["8"]
    rollouts.evaluate(args, 0)  # as slime does after its first update
    assert len({request.task_id for request in sessions.requests}) == 4
    assert sessions.published == [7, 8]


def test_the_signature_is_slime_s(slime: Any) -> None:
    parameters = inspect.signature(slime.generate_rollout).parameters
    assert [*parameters] == ["args", "rollout_id", "data_source", "evaluation"]
    assert parameters["evaluation"].default is False


def test_a_missing_key_is_named(slime: Any) -> None:
    with pytest.raises(InputError, match=r"polar_task: set it in the file of --custom-config-path"):
        slime.generate_rollout(arguments(), 0, DataSource(1))
    with pytest.raises(InputError, match=r"polar_run: set it"):
        slime.generate_rollout(arguments(polar_task="tasks.body"), 0, DataSource(1))


@pytest.mark.skipif(importlib.util.find_spec("slime") is not None, reason="slime is installed")
def test_without_slime_the_import_says_where_it_is() -> None:
    with pytest.raises(ImportError, match="install slime from its repository, THUDM/slime"):
        import polar.trainer.slime  # noqa: F401


@pytest.mark.parametrize("name", WANTED)
def test_an_argument_that_would_train_otherwise_is_refused(name: str) -> None:
    check(arguments())
    with pytest.raises(InputError, match=f"{name}: must be"):
        check(arguments(**{name: "other"}))


def test_an_estimator_without_groups_is_refused() -> None:
    for estimator in ESTIMATORS:
        check(arguments(advantage_estimator=estimator))
    with pytest.raises(InputError, match="advantage_estimator: must be one of grpo, gspo"):
        check(arguments(advantage_estimator="ppo"))


def test_engines_of_several_versions_are_refused(args: SimpleNamespace, versions: list[str]) -> None:
    assert weight_version(args) == 7
    for wrong in (["7", "8"], ["default"], []):
        versions[:] = wrong
        with pytest.raises(NotReadyError, match="must have one version, and have"):
            weight_version(args)


def test_a_router_that_is_gone_is_named() -> None:
    with pytest.raises(NotReadyError, match=r"http://127\.0\.0\.1:9/workers doesn't answer"):
        weight_version(arguments(sglang_router_port=9))


@given(st.lists(groups(), min_size=1, max_size=3), st.sampled_from(ESTIMATORS), st.booleans())
def test_what_slime_counts_on_holds(found: list[Group], estimator: str, by_deviation: bool) -> None:
    size = max(len(group.trajectories) for group in found)
    args = arguments(n_samples_per_prompt=size, advantage_estimator=estimator, grpo_std_normalization=by_deviation)
    places = [Place(10 + at, 100 + at * size) for at in range(len(found))]
    tokens = sorted(token for group in found for token in rewarded_tokens(group))
    if not tokens:
        with pytest.raises(NotReadyError, match="has a reward and tokens to train"):
            train_batch(places, found, args)
        return
    batch = train_batch(places, found, args)
    rollouts = [rollout for prompt in batch for rollout in prompt]
    assert [{one["rollout_id"] for one in rollout} for rollout in rollouts] == [
        {100 + at} for at in range(size * len(found))
    ]
    rows = [one for rollout in rollouts for one in rollout]
    assert all(
        one["response_length"] == len(one["loss_mask"]) == len(one["rollout_log_probs"]) < len(one["tokens"])
        for one in rows
    )
    trained = [
        token
        for one in rows
        for token, mask in zip(one["tokens"][-one["response_length"] :], one["loss_mask"], strict=True)
        if mask
    ]
    assert sorted(trained) == tokens
    scaled = by_deviation and estimator != "reinforce_plus_plus_baseline"
    for prompt, place, group in zip(batch, places, found, strict=True):
        wanted = advantages(group.rewards, by_deviation=scaled)
        for rollout in prompt:
            at = rollout[0]["index"] - place.first_index
            value = wanted[at] if any(map(any, (one["loss_mask"] for one in rollout))) else 0.0
            assert {one["reward"] for one in rollout} == {value}


def test_an_evaluated_session_without_tokens_has_its_reward() -> None:
    one = trajectory("t", 0, 1, 1.0)
    bare = Group("t", [type(one)(**{**{name: getattr(one, name) for name in one.__struct_fields__}, "traces": []})])
    assert [sample["reward"] for sample in eval_samples(Place(0, 0), bare)] == [1.0]
