"""The newest sessions and the curves of the last hours, which the page shows beside the figures of `fold.py`.

The topics' records come from `view.py`; this module passes them to `session_rows.py` and `series.py`.
"""

from __future__ import annotations

import structlog

from analytics.live.series import MINUTE_MS, Series
from analytics.live.session_rows import SessionRows
from topics.completions import CallRecord
from topics.events import Fact
from topics.sessions import Row
from topics.trajectories import Output
from topics.types.session import TaskState
from topics.types.trajectory import GroupFinished, Trajectory

EVAL = "eval"
"""The suffix of `trajectories.EVAL`, which is followed in any case."""
OUTPUTS = 16
"""Output topics that are followed beside the default one and `eval`: those of the tasks whose rows changed last."""
LOGGED = 1_000
"""Names of other output topics that are remembered, so that each is logged once."""

log = structlog.get_logger()


class Recent:
    """Takes records of the followed topics with their timestamps (Unix ms), in order within a topic."""

    def __init__(self) -> None:
        self.sessions = SessionRows()
        self.series = Series()
        self.outputs: dict[str, int] = {}
        """Suffixes of the output topics to follow, each with the time of the newest row of a task that named it."""
        self._left_out: set[str] = set()

    def row(self, record: Row, at_ms: int) -> None:
        """Take a record of `polar.sessions`."""
        self.sessions.row(record, at_ms)
        if isinstance(record, TaskState) and record.plan is not None and record.plan.output not in (None, EVAL):
            self._name_output(record.plan.output, at_ms)

    def _name_output(self, output: str, at_ms: int) -> None:
        if output not in self.outputs and len(self.outputs) == OUTPUTS:
            oldest = min(self.outputs, key=lambda name: (self.outputs[name], name))
            # A minute apart: more tasks than that at work in turn must not change the readers with each row.
            is_newer = at_ms > self.outputs[oldest] + MINUTE_MS
            self._leave_out(oldest if is_newer else output)
            if not is_newer:
                return
            del self.outputs[oldest]
        self._left_out.discard(output)
        self.outputs[output] = max(at_ms, self.outputs.get(output, 0))

    def _leave_out(self, output: str) -> None:
        if output not in self._left_out and len(self._left_out) < LOGGED:
            self._left_out.add(output)
            log.warning(
                "an output isn't followed: others are newer", action="live.output", output=output, limit=OUTPUTS
            )

    def tombstone(self, key: str) -> None:
        """The row of `polar.sessions` with this key was deleted."""
        self.sessions.tombstone(key)

    def fact(self, fact: Fact, at_ms: int) -> None:
        """Take a record of `polar.events`."""
        self.sessions.fact(fact, at_ms)

    def call(self, record: CallRecord, at_ms: int) -> None:
        """Take a record of `polar.completions`."""
        self.sessions.call(record, at_ms)

    def output(self, record: Output, at_ms: int, now_ms: int) -> None:
        """Take a record of a trajectories topic. `now_ms`: the broker's clock; a builder whose clock is ahead would move the window."""
        at_ms = min(at_ms, now_ms)
        match record:
            case Trajectory(rebuilt_with=None):
                self.sessions.trajectory(record, at_ms)
                self.series.trajectory(record, at_ms)
            case GroupFinished():
                self.series.group(record, at_ms)
