"""Checks that all rows of a batch have one mode of logprobs and one temperature, since the trainer has one setting for each."""

from __future__ import annotations

from collections.abc import Iterable

from polar.trainer.groups import sampling_calls
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory


def require_alike(trajectories: Iterable[Trajectory], *, one_temperature: bool = True) -> None:
    """Raises InputError if trained tokens have logprobs of several modes or, with `one_temperature`, several temperatures.

    An unknown value differs from a known one. Logprobs of plain sampling are the same in all modes. Sessions and traces without a reward
    aren't trained.
    """
    modes: dict[object, str] = {}
    temperatures: dict[object, str] = {}
    for trajectory in trajectories:
        for call in sampling_calls(trajectory):
            if not call.sampling.plain:
                modes.setdefault(call.logprobs_mode, trajectory.session_id)
            temperatures.setdefault(call.sampling.temperature, trajectory.session_id)
    _require_one("logprobs_mode", modes, 'expect(logprobs="processed")')
    if one_temperature:
        _require_one("temperature", temperatures, "expect(temperature=1.0)")


def _require_one(field: str, found: dict[object, str], rule: str) -> None:
    """`found`: values, each with a session that has it."""
    if len(found) > 1:
        sessions = ", ".join(f"{'unknown' if value is None else value} in {name}" for value, name in found.items())
        reason = f"the trainer takes one for the whole batch, and there is {sessions}: leave some out, as with the rule {rule}"
        raise InputError(field, [*found], reason)
