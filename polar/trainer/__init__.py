"""The trainer's SDK: trajectories and complete groups from Kafka as numpy arrays; the trainer stores its reading position.

    with TrajectoryConsumer() as consumer:
        for group in consumer.groups(drop_zero_advantage):
            for batch in pack(grpo(group), max_tokens=65_536):
                ...

The builder decides which tokens are trained and with which logprobs (`topics.types.trajectory`). `polar.trainer.exporters` converts groups
into the formats of other trainers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polar.trainer.consumer import TrajectoryConsumer
    from polar.trainer.feeding import Feed
    from polar.trainer.groups import Group, drop_zero_advantage
    from polar.trainer.media import MediaReader
    from polar.trainer.packing import Batch, pack
    from polar.trainer.replay import Replay, drop_uncaptured
    from polar.trainer.rows import Row, grpo
    from polar.trainer.sampling_expectation import expect
    from polar.trainer.staleness import Staleness

__all__ = [
    "Batch", "Feed", "Group", "MediaReader", "Replay", "Row", "Staleness", "TrajectoryConsumer", "drop_uncaptured", "drop_zero_advantage",
    "expect", "grpo", "pack",
]  # fmt: skip

_NAMES = {
    "consumer": "TrajectoryConsumer",
    "feeding": "Feed",
    "groups": "Group drop_zero_advantage",
    "media": "MediaReader",
    "packing": "Batch pack",
    "replay": "Replay drop_uncaptured",
    "rows": "Row grpo",
    "sampling_expectation": "expect",
    "staleness": "Staleness",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import the names of `__all__` on first use: importing the Kafka client takes as long as everything else together."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
