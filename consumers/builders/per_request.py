"""`per_request`: one trace per call, which trains what that call sampled.

Calls whose sampled tokens are masked make no trace; they stay in the tree, counted by their reason.
"""

from __future__ import annotations

from typing import Any

from consumers.builders.assembly import trace, trajectory
from consumers.builders.base import BuiltFrom, refuse_unknown
from consumers.builders.tree import grow
from polar.types.trajectory import Trajectory


class PerRequest:
    """A `Builder`."""

    def __init__(self, **config: Any) -> None:
        refuse_unknown(config)

    def build(self, session: BuiltFrom) -> Trajectory:
        tree = grow(session.calls, session.disowned)
        return trajectory(session, tree, [trace(session, tree, i, list(tree.sampled[i])) for i in tree.trainable()])
