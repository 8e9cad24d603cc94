"""NeMo-Gym's results: each item's prompt begins with all that came before, as NeMo-RL asserts when it makes a message log of them.

No package index has NeMo-RL. Its assertions are from `nemo_rl/environments/nemo_gym.py` (`_postprocess_nemo_gym_to_nemo_rl_result`) at
7ea279abf; tests/vllm/exporters runs NeMo-Gym's own types.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given

from polar.trainer.exporters.nemo import message_log, results
from polar.trainer.exporters.segments import rewarded
from polar.trainer.groups import Group
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import groups, trained_tokens
from topics.types.errors import InputError


def items(result: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result["response"]["output"]
    return found


def test_a_session_is_one_result(linear: Group) -> None:
    main, other = results(linear, task_index=9)
    assert [(one["prompt_token_ids"], one["generation_token_ids"]) for one in items(main)] == [
        ([1, 2], [3, 4]),
        ([1, 2, 3, 4, 5], [6]),
    ]
    assert [one["generation_log_probs"] for one in items(main)] == [[-0.5, -0.25], [-1.0]]
    assert [(one["_ng_task_index"], one["_ng_rollout_index"], one["reward"]) for one in (main, other)] == [
        (9, 0, 1.0), (9, 1, 0.0),
    ]  # fmt: skip
    assert main["response"]["created_at"] == 5.0


def test_a_session_that_branched_is_refused_or_its_longest_trace(group: Group) -> None:
    """Each result enters the baseline of its prompt."""
    with pytest.raises(
        InputError, match=r"groups: has 2 traces, .*: pass branches='longest', or make .* \(got 't\.0'\)"
    ):
        results(group, task_index=0)
    longest, other = results(group, task_index=0, branches="longest")
    assert [one["generation_token_ids"] for one in items(longest)] == [[3, 4], [6]]
    assert [one["_ng_rollout_id"] for one in (longest, other)] == ["t.0", "t.1"]


def test_calls_with_rewards_of_their_own_are_refused_unless_they_agree(linear: Group) -> None:
    with pytest.raises(InputError, match=r"groups: its calls have the rewards \[0\.0, 1\.0\], .*: make a message_log"):
        results(with_rewards(linear, 0.0, None), task_index=0)
    assert results(with_rewards(linear, 0.5, 0.5), task_index=0)[0]["reward"] == 0.5


@given(groups())
def test_items_are_contiguous_and_none_is_empty(group: Group) -> None:
    made = results(group, task_index=0, branches="longest")
    assert len({result["_ng_rollout_id"] for result in made}) == len(made)
    for result in made:
        seen: list[int] = []
        for item in items(result):
            prompt, sampled = item["prompt_token_ids"], item["generation_token_ids"]
            assert prompt[: len(seen)] == seen
            assert len(prompt) > len(seen), "a user message without tokens would be one of another dtype"
            assert len(sampled) == len(item["generation_log_probs"]) > 0
            assert not any(math.isnan(one) for one in item["generation_log_probs"])
            seen = prompt + sampled
        assert isinstance(result["reward"], float)
        assert json.loads(json.dumps(result)) == result


@given(groups())
def test_a_message_log_alternates_and_its_assistant_s_tokens_are_the_trained_ones(group: Group) -> None:
    for trajectory, parts in rewarded(group):
        trained: list[int] = []
        for segment in parts:
            log = message_log(segment)
            assert [one["role"] for one in log] == ["user", "assistant"] * (len(log) // 2)
            assert all(len(one["token_ids"]) for one in log)
            trained += [token for one in log[1::2] for token in one["token_ids"].tolist()]
            ids = [token for one in log for token in one["token_ids"].tolist()]
            assert ids == segment.expanded.token_ids.tolist()[: len(ids)]
        assert sorted(trained) == trained_tokens(trajectory)
