"""What a record of sampling says of the distribution: plain only where every setting is known to leave the model's own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.types.completion import FREE, Sampling, truncates
from topics.types.task import TRAINING_DEFAULTS

NEUTRAL: dict[str, Any] = TRAINING_DEFAULTS.model_dump(exclude_none=True)
PLAIN = Sampling(**NEUTRAL, grammar_source=FREE)


def test_the_training_defaults_are_plain_where_no_grammar_is_known_to_be() -> None:
    assert PLAIN.plain
    assert not PLAIN.greedy
    assert not PLAIN.penalised


@pytest.mark.parametrize("field", [*NEUTRAL, "grammar_source"])
def test_what_is_not_known_is_not_plain(field: str) -> None:
    left_open = msgspec.structs.replace(PLAIN, **{field: "unknown" if field == "grammar_source" else None})
    assert not left_open.plain
    assert not left_open.penalised


@pytest.mark.parametrize(
    ("changes", "greedy", "penalised"),
    [
        ({"temperature": 0.7}, False, False),
        ({"temperature": 0.0}, True, False),
        ({"top_p": 0.9, "truncated": True}, False, False),
        ({"top_k": 8, "truncated": True}, False, False),
        ({"min_p": 0.1, "truncated": True}, False, False),
        ({"presence_penalty": 0.5}, False, True),
        ({"frequency_penalty": -0.5}, False, True),
        ({"repetition_penalty": 1.1}, False, True),
        ({"logit_bias": {"5": 1.0}}, False, True),
        ({"grammar": True, "grammar_source": "strict_tools"}, False, False),
    ],
)
def test_any_setting_that_changes_the_distribution_ends_it(
    changes: dict[str, Any], greedy: bool, penalised: bool
) -> None:
    changed = msgspec.structs.replace(PLAIN, **changes)
    assert (changed.plain, changed.greedy, changed.penalised) == (False, greedy, penalised)


def test_seed_stop_and_limit_leave_the_distribution_alone() -> None:
    assert msgspec.structs.replace(PLAIN, seed=3, stop=["\n"], max_tokens=9).plain


@pytest.mark.parametrize(
    ("settings", "truncated"),
    [
        ((None, None, None), False),
        ((1.0, -1, 0.0), False),
        ((1.0, 0, 0.0), False),
        ((0.9, None, None), True),
        ((None, 5, None), True),
        ((None, None, 0.1), True),
    ],
)
def test_what_truncates(settings: tuple[float | None, int | None, float | None], truncated: bool) -> None:
    assert truncates(*settings) is truncated


def test_a_record_of_an_older_polar_is_not_said_to_be_free_of_grammars() -> None:
    old = msgspec.json.decode(b'{"temperature":1,"top_p":1,"top_k":-1,"min_p":0}', type=Sampling)
    assert (old.grammar, old.grammar_source, old.plain) == (False, "unknown", False)
