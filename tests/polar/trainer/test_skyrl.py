"""SkyRL's generator: batches, versions, ids, positions and refusals, beside stand-ins of SkyRL's two types.

tests/vllm/exporters/check_skyrl.py runs it with SkyRL's own code. `Sessions` stands for a Polar system.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.groups import Group
from polar.trainer.skyrl_batch import PLAIN, TrajectoryName, batch, check_sampling, prompts_of
from tests.polar.trainer.sessions import Sessions
from tests.polar.trainer.trees import groups, rewarded_tokens
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError


@dataclass(frozen=True)
class TrajectoryID:
    instance_id: str
    repetition_id: int


class GeneratorInterface(ABC):
    @abstractmethod
    async def generate(self, input_batch: Any) -> Any: ...


@pytest.fixture
def skyrl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`polar.trainer.skyrl`, imported beside the stand-ins, with `Sessions` in the place of each connection."""
    base = ModuleType("skyrl.train.generators.base")
    base.__dict__.update(GeneratorInterface=GeneratorInterface, TrajectoryID=TrajectoryID)
    for name in ("skyrl", "skyrl.train", "skyrl.train.generators"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    module: Any = import_module("polar.trainer.skyrl")
    monkeypatch.setattr("polar.trainer.step_positions.TrainingRun", lambda *_: Sessions())
    yield module
    del sys.modules["polar.trainer.skyrl"]


def body(prompt: Any) -> dict[str, Any]:
    return {"instruction": prompt["prompt"][0]["content"], "agent": {"harness": "pi"}}


def input_batch(
    step: int | None, mode: str = "train", *, uids: Sequence[str] = ("7", "3"), **sampling: Any
) -> dict[str, Any]:
    """What SkyRL's `prepare_generator_input` makes of these rows, with three samples each."""
    each = [uid for uid in uids for _ in range(3)]
    return {
        "prompts": [[{"role": "user", "content": f"p{uid}"}] for uid in each],
        "env_classes": ["none"] * len(each),
        "env_extras": [{"extra": uid} for uid in each],
        "sampling_params": {"temperature": 0.7, **sampling},
        "trajectory_ids": [TrajectoryID(uid, at % 3) for at, uid in enumerate(each)],
        "batch_metadata": SimpleNamespace(global_step=step, training_phase=mode),
    }


def test_a_batch_is_in_the_order_of_the_prompts(skyrl: Any, tmp_path: Path) -> None:
    generator = skyrl.PolarGenerator(body, run="r1", positions=tmp_path, settings=Settings(data=tmp_path))
    output = asyncio.run(generator.generate(input_batch(1)))
    sessions = generator._run
    assert sessions.published == [1]
    assert [request.instruction for request in sessions.requests] == ["p7", "p3"]
    assert output["trajectory_ids"] == [TrajectoryID(*one) for one in (("7", 0), ("7", 1), ("3", 0), ("3", 1))]
    assert output["response_ids"] == [[10, 0], [10, 1]] * 2
    assert (output["rewards"], output["is_last_step"]) == ([1.0, 0.0] * 2, [True] * 4)
    assert output["rollout_metrics"]["polar/null_rewards"] == 2


def test_an_evaluation_has_the_version_of_the_next_step(skyrl: Any, tmp_path: Path) -> None:
    """SkyRL evaluates before the first step under the number 0, and after the update of a step under the step's number."""
    generator = skyrl.PolarGenerator(body, run="r1", positions=tmp_path, settings=Settings(data=tmp_path))
    for step, mode in ((0, "eval"), (1, "train"), (1, "train"), (1, "eval"), (2, "train")):
        asyncio.run(generator.generate(input_batch(step, mode)))
    assert generator._run.published == [1, 1, 1, 2, 2]
    places = [request.task_id.removeprefix("r1-").rpartition("-")[0] for request in generator._run.requests[::2]]
    assert places == ["eval-0-0-0", "1-0-0", "1-1-0", "eval-1-0-0", "2-0-0"]


@pytest.mark.parametrize(
    ("mode", "step", "position"), [("train", 3, 2), ("eval", 2, 2), ("train", 1, None), ("train", 9, 4)]
)
def test_a_process_that_resumes_begins_after_its_checkpoint_s_step(
    skyrl: Any, tmp_path: Path, mode: str, step: int, position: int | None
) -> None:
    def made() -> Any:
        return skyrl.PolarGenerator(body, run="r1", positions=tmp_path / "polar", settings=Settings(data=tmp_path))

    before = made()
    for number in range(1, 5):
        asyncio.run(before.generate(input_batch(number)))
        asyncio.run(before.generate(input_batch(number, "eval")))
    resumed = made()
    asyncio.run(resumed.generate(input_batch(step, mode)))
    # Two tasks a call, and a position is written before the step's evaluation.
    assert resumed._run.loaded == (None if position is None else {"run": "r1", "requested": 4 * position - 2})
    ids = [request.task_id for request in resumed._run.requests]
    assert (ids[0] in [request.task_id for request in before._run.requests]) == (step < 5)


def test_two_batches_at_a_time_are_refused(skyrl: Any, tmp_path: Path) -> None:
    generator = skyrl.PolarGenerator(body, run="r1", positions=tmp_path, settings=Settings(data=tmp_path))

    async def both() -> None:
        await asyncio.gather(generator.generate(input_batch(1)), generator.generate(input_batch(2)))

    with pytest.raises(RuntimeError, match="fully asynchronous trainer"):
        asyncio.run(both())


def test_an_evaluation_without_a_training_is_refused(skyrl: Any, tmp_path: Path) -> None:
    generator = skyrl.PolarGenerator(body, run="r1", positions=tmp_path, settings=Settings(data=tmp_path))
    with pytest.raises(InputError, match="batch_metadata: needs a step"):
        asyncio.run(generator.generate(input_batch(None, "eval")))


@pytest.mark.skipif(importlib.util.find_spec("skyrl") is not None, reason="SkyRL is installed")
def test_without_skyrl_the_import_names_the_package() -> None:
    with pytest.raises(ImportError, match=r"polar\.trainer\.skyrl needs skyrl 0\.3\.0: pip install skyrl==0\.3\.0"):
        import polar.trainer.skyrl  # noqa: F401


@pytest.mark.parametrize("name", PLAIN)
def test_truncated_sampling_is_refused_in_training(name: str) -> None:
    assert check_sampling({"temperature": 0.7, name: PLAIN[name][0]}, "train") == 0.7
    assert check_sampling({"temperature": 0.0, name: 0.5}, "eval") == 0.0
    with pytest.raises(InputError, match=rf"sampling_params\.{name}: must be"):
        check_sampling({name: 0.5}, "train")


def test_prompts_of_several_numbers_of_samples_are_refused() -> None:
    one = input_batch(1)
    prompts, samples = prompts_of(one)
    assert (samples, [prompt["uid"] for prompt in prompts]) == (3, ["7", "3"])
    assert prompts[1] == {"prompt": one["prompts"][3], "env_class": "none", "env_extras": {"extra": "3"}, "uid": "3"}
    for name in ("prompts", "env_classes", "env_extras", "trajectory_ids"):
        del one[name][-1]
    with pytest.raises(InputError, match="trajectory_ids: every prompt"):
        prompts_of(one)


@given(st.lists(groups(), min_size=1, max_size=3))
def test_each_prompt_has_rows_and_each_trained_token_is_in_one(found: list[Group]) -> None:
    named = [
        Group(
            f"t{at}",
            [
                msgspec.structs.replace(one, task_id=f"t{at}", session_id=f"t{at}.{one.sample_index}")
                for one in group.trajectories
            ],
        )
        for at, group in enumerate(found)
    ]
    uids = [f"u{at}" for at in range(len(named))]
    tokens = sorted(token for group in named for token in rewarded_tokens(group))
    if not tokens:
        with pytest.raises(NotReadyError, match="has a reward and tokens to train"):
            batch(uids, named)
        return
    output = batch(uids, named)
    names: list[TrajectoryName] = output["trajectory_ids"]
    assert list(dict.fromkeys(name.instance_id for name in names)) == uids
    last = [name for name, is_last in zip(names, output["is_last_step"], strict=True) if is_last]
    assert last == list(dict.fromkeys(names))
    rows = list(zip(output["response_ids"], output["loss_masks"], output["rollout_logprobs"], strict=True))
    assert all(len(ids) == len(mask) == len(logprobs) for ids, mask, logprobs in rows)
    assert sorted(token for ids, mask, _ in rows for token, bit in zip(ids, mask, strict=True) if bit) == tokens
