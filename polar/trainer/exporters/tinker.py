"""Tinker's `Datum` (`tinker/types/datum.py`, tinker 0.25.0), for its losses with importance ratios: `importance_sampling`, `ppo`, `cispo`.

Tinker requires: the input is the sequence without its last token, and all arrays of `loss_fn_inputs` are of the tokens that follow, so
they are the row's from its second token on. Its losses read `target_tokens`, `logprobs` and `advantages`, and sum over tokens: a token
that isn't trained has the advantage 0. Its trainer scores at temperature 1 and has no setting for another one.

SkyRL's server (skyrl 0.4.0) instead takes a mean over a datum's `weights`, which are 1 everywhere if there are none, and a mean over
datums: for that server, add the mask as `weights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.segments import refuse_media
from polar.trainer.groups import Group, sampling_calls
from polar.trainer.rows import grpo
from topics.types.errors import InputError

TEMPERATURE = 1.0
"""Of the logprobs that Tinker computes."""


class Datum(msgspec.Struct, frozen=True, eq=False):
    """A trace of n + 1 tokens. `tinker.Datum` takes `tinker.ModelInput.from_ints(tokens)` and the `loss_fn_inputs` as they are."""

    session_id: str
    trace: int
    """Index into the trajectory's traces."""
    tokens: list[int]
    """[n]: what is read."""
    loss_fn_inputs: dict[str, NDArray[Any]]
    """`target_tokens`: int64 [n], the token after each one read. `logprobs`, `advantages`: float32 [n], of the target; 0.0 where it isn't
    trained."""
    mask: NDArray[np.float32]
    """float32 [n], 1 where the target is trained"""

    @property
    def trained(self) -> NDArray[np.bool_]:
        """bool [n]"""
        found: NDArray[np.bool_] = self.mask > 0
        return found


def datums(groups: Sequence[Group], *, by_deviation: bool = True, leave_one_out: bool = False) -> list[Datum]:
    """All rows in the order of the groups, with GRPO's advantages per rollout, or per call with a reward (`polar.trainer.grpo`).

    Raises InputError for a row with images or sounds, for a call at another temperature than 1, and as `require_alike` does. A call that
    set no temperature had the engine's default, which isn't known here: the rule `expect(temperature=1.0)` leaves it out.
    """
    for group in groups:
        for trajectory in group.trajectories:
            for call in sampling_calls(trajectory):
                _require_plain(trajectory.session_id, call.call_id, call.sampling.temperature)
    require_alike(trajectory for group in groups for trajectory in group.trajectories)
    rows = [row for group in groups for row in grpo(group, by_deviation=by_deviation, leave_one_out=leave_one_out)]
    for row in rows:
        refuse_media(row.session_id, row.media)
    return [
        Datum(
            row.session_id,
            row.trace,
            row.token_ids[:-1].tolist(),
            {
                "target_tokens": row.token_ids[1:].astype(np.int64),
                "logprobs": row.logprobs[1:].copy(),
                "advantages": row.advantages[1:].copy(),
            },
            row.loss_mask[1:].astype(np.float32),
        )
        for row in rows
    ]


def _require_plain(session_id: str, call_id: str, temperature: float | None) -> None:
    if temperature not in (None, TEMPERATURE):
        reason = f"call {call_id} of {session_id} has it, and Tinker scores at 1: leave it out, as with the rule expect(temperature=1.0)"
        raise InputError("temperature", temperature, reason)
