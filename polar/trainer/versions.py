"""Which policy version sampled each token of a node: what staleness and rows both ask."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polar.types.tokens import count
from polar.types.trajectory import Trajectory

UNKNOWN = -1
"""Nobody knows; also of a token that was only read."""

Versions = NDArray[np.int64]


def versions(trajectory: Trajectory, index: int) -> Versions:
    """Of the node's tokens, int64 [n]; `UNKNOWN` where nobody knows."""
    node = trajectory.nodes[index]
    known = None if node.call is None else trajectory.calls[node.call].policy_version
    return np.full(count(node.tokens), UNKNOWN if known is None else known, dtype=np.int64)
