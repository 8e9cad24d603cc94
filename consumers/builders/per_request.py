"""`per_request`: one trace per call, which trains the call's sampled tokens.

Calls whose sampled tokens are masked make no trace. They stay in the tree, counted by their reason.
"""

from __future__ import annotations

from typing import Any

from consumers.builders.base import BuiltFrom
from consumers.token_tree.assembly import trace, trajectory
from consumers.token_tree.tree import grow
from topics.types.building import options
from topics.types.trajectory import Trajectory


class PerRequest:
    """A `Builder`."""

    def __init__(self, **config: Any) -> None:
        """See `topics.types.building.Options`."""
        self._options = options("per_request", config)

    def build(self, session: BuiltFrom) -> Trajectory:
        tree = grow(session.calls, session.disowned, self._options.filters, session.build.status)
        traces = [trace(session, tree, index, list(tree.sampled[index])) for index in tree.trainable()]
        return trajectory(session, tree, traces, self._options)
