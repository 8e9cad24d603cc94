"""The counts of calls that `polar trajectories` prints."""

from __future__ import annotations

import msgspec
import pytest

from polar.show.trajectory import line
from tests.analytics.story import story
from topics.types.building import TRAINED
from topics.types.completion import CallOutcome
from topics.types.trajectory import Trajectory

ONE = next(record for _, record in story() if isinstance(record, Trajectory) and record.calls)


@pytest.mark.parametrize("outcome", CallOutcome)
@pytest.mark.parametrize("kind", [*TRAINED, "title", "side", "a kind of later versions"])
def test_answered_calls_of_kinds_that_are_not_trained_are_counted_as_side_calls(
    kind: str, outcome: CallOutcome
) -> None:
    call = msgspec.structs.replace(ONE.calls[0], kind=kind, outcome=outcome)
    work = msgspec.structs.replace(call, kind="main")
    trajectory = msgspec.structs.replace(ONE, calls=[work, call, call])
    wanted = 2 if outcome is CallOutcome.ANSWERED and kind not in TRAINED else 0
    assert line(msgspec.structs.replace(trajectory, traces=[]))["side_calls"] == wanted
