"""No exporter takes a batch whose logprobs or temperatures differ, if its trainer has one place for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polar.trainer.exporters import nemo, prime_rl, skyrl, slime, trl, verl
from polar.trainer.groups import Group
from tests.polar.trainer.writing import trajectory
from topics.types.completion import FREE, Sampling
from topics.types.errors import InputError
from topics.types.task import TRAINING_DEFAULTS
from topics.types.trajectory import Trajectory

PLAIN = Sampling(**TRAINING_DEFAULTS.model_dump(exclude_none=True), grammar_source=FREE)
BOUND = msgspec.structs.replace(PLAIN, grammar=True, grammar_source="tool_choice")
COOL = msgspec.structs.replace(PLAIN, temperature=0.7)
EXPORTERS: dict[str, Callable[[Group], Any]] = {
    "nemo": lambda group: nemo.results(group, task_index=0),
    "skyrl": lambda group: skyrl.generator_output([group]),
    "slime": lambda group: slime.samples(group, group_index=0, first_index=0),
    "trl": lambda group: trl.rollouts([group], num_generations=2),
    "trl rows": lambda group: trl.rollout_samples(group, group_id=0),
    "verl": lambda group: verl.data_proto([group], prompt_length=9, response_length=9, pad_token_id=0),
    "prime_rl": lambda group: prime_rl.training_samples(group, env_name="e"),
}


def sample(index: int, sampling: Sampling, mode: str, reward: float | None) -> Trajectory:
    made = trajectory("t", index, 2, reward)
    calls = [msgspec.structs.replace(call, sampling=sampling, logprobs_mode=mode) for call in made.calls]
    return msgspec.structs.replace(made, calls=calls)


def pair(one: tuple[Sampling, str], other: tuple[Sampling, str], reward: float | None = 0.0) -> Group:
    return Group("t", [sample(0, *one, 1.0), sample(1, *other, reward)])


@pytest.mark.parametrize("export", EXPORTERS.values(), ids=EXPORTERS)
def test_logprobs_of_two_modes_are_no_batch(export: Callable[[Group], Any]) -> None:
    with pytest.raises(InputError, match=r"logprobs_mode: .* raw in t\.0, processed in t\.1.* expect\(logprobs="):
        export(pair((BOUND, "raw"), (BOUND, "processed")))
    with pytest.raises(InputError, match=r"logprobs_mode: .* unknown in t\.1"):
        export(pair((BOUND, "processed"), (BOUND, "unknown")))
    export(pair((BOUND, "raw"), (BOUND, "raw")))
    export(pair((PLAIN, "raw"), (BOUND, "processed")))


@pytest.mark.parametrize("export", [*EXPORTERS.values()][:-1], ids=[*EXPORTERS][:-1])
def test_two_temperatures_are_no_batch(export: Callable[[Group], Any]) -> None:
    with pytest.raises(InputError, match=r"temperature: .* 1\.0 in t\.0, 0\.7 in t\.1.* expect\(temperature="):
        export(pair((PLAIN, "processed"), (COOL, "processed")))
    with pytest.raises(InputError, match=r"temperature: .* unknown in t\.1"):
        export(pair((PLAIN, "processed"), (Sampling(), "processed")))
    export(pair((COOL, "processed"), (COOL, "processed")))


def test_prime_rl_has_a_temperature_for_each_token() -> None:
    assert len(EXPORTERS["prime_rl"](pair((PLAIN, "processed"), (COOL, "processed")))) == 2


def test_a_sample_that_is_not_trained_may_be_of_any_kind() -> None:
    slime.samples(pair((PLAIN, "raw"), (COOL, "processed"), None), group_index=0, first_index=0)
