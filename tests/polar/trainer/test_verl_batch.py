"""verl's settings, and groups as its rows. tests/vllm/exporters/check_verl.py runs the whole manager with verl's own code."""

from __future__ import annotations

import importlib.util

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.groups import Group
from polar.trainer.prompt_tasks import body_function
from polar.trainer.verl_batch import check, rows, samples_of, setting
from tests.polar.trainer.trees import groups, rewarded_tokens
from tests.polar.trainer.verl_settings import config
from topics.types.errors import InputError, NotReadyError


def test_usual_settings_pass_and_missing_ones_that_may_be_missing() -> None:
    check(config())
    made = config()
    del made["distillation"], made["reward"], made["algorithm"]["filter_groups"]
    check(made)
    assert setting(made, "reward.reward_model.enable") is None


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("trainer.use_v1", False, "must be true"),
        ("trainer.v1.trainer_mode", "colocate_async", "must be sync: the others update weights while sessions run"),
        ("trainer.v1.trainer_mode", "separate_async", "must be sync"),
        ("algorithm.adv_estimator", "rloo", "must be grpo or gae"),
        ("algorithm.filter_groups.enable", True, "must be false"),
        ("reward.custom_reward_function.path", "reward.py", "must be unset: rewards come from the task's evaluator"),
        ("reward.reward_model.enable", True, "must be false"),
        ("distillation.enabled", True, "must be false"),
        ("actor_rollout_ref.rollout.top_p", 0.9, "must be 1.0"),
        ("actor_rollout_ref.rollout.top_k", 20, "must be -1 or 0"),
        ("actor_rollout_ref.rollout.enable_rollout_routing_replay", True, "must be false"),
    ],
)
def test_settings_that_verl_would_train_wrongly_with_are_refused_by_name(path: str, value: object, reason: str) -> None:
    with pytest.raises(InputError, match=rf"^{path}: {reason}"):
        check(config(**{path: value}))


def test_a_row_of_the_dataset_may_have_a_number_of_samples() -> None:
    assert samples_of({}, 4) == 4
    assert samples_of({"__rollout_n__": 2, "__do_sample__": True}, 4) == 2
    with pytest.raises(InputError, match="__do_sample__"):
        samples_of({"__do_sample__": False}, 4)


def test_the_body_function_is_imported_by_its_path() -> None:
    found: object = body_function("polar.task", "tests.polar.trainer.verl_settings.config")
    assert found is config
    for path in ("config", "tests.polar.trainer.test_verl_batch.nothing", "no_such_module.body"):
        with pytest.raises(InputError, match=r"^polar\.task: must be MODULE\.FUNCTION"):
            body_function("polar.task", path)


@given(st.lists(groups(versions=st.integers(0, 6)), min_size=1, max_size=3))
def test_each_trained_token_is_in_one_row_and_each_reward_is_evaluated(found: list[Group]) -> None:
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
            rows(uids, named, "train")
        return
    train, evaluated = rows(uids, named, "train"), rows(uids, named, "eval")
    trained = [
        token
        for row in train
        for token, bit in zip(row.output["response_ids"], row.output["response_mask"], strict=True)
        if bit
    ]
    assert sorted(trained) == tokens
    assert len({row.key for row in train}) == len(train)
    assert all(row.key.rsplit("_", 2)[:2] == [uids[row.prompt], str(row.sample)] for row in train)
    # The last row of a session is the one that counts.
    rewards = {(row.prompt, row.sample): row.output["reward_score"] for row in evaluated}
    assert rewards == {
        (at, one.sample_index): one.reward
        for at, group in enumerate(named)
        for one in group.trajectories
        if one.reward is not None
    }
    assert [row for row in evaluated if any(row.output["response_mask"])] == train


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")
def test_without_verl_the_import_names_the_package() -> None:
    with pytest.raises(ImportError, match=r"polar\.trainer\.verl runs inside verl 0\.9\.1: pip install verl==0\.9\.1"):
        import polar.trainer.verl  # noqa: F401
