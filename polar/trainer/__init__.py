"""For trainers: trajectories and complete groups from Kafka, as numpy arrays, with a position that the trainer keeps.

    with TrajectoryConsumer() as consumer:
        for group in consumer.groups(drop_zero_advantage):
            for batch in pack(grpo(group), max_tokens=65_536):
                ...

Nothing here decides what is trained: what a token's mask and logprob say is the builder's (`topics.types.trajectory`). Forms that
other trainers take are in `polar.trainer.exporters`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polar.trainer.consumer import TrajectoryConsumer
    from polar.trainer.feeding import Feed
    from polar.trainer.groups import Group, drop_zero_advantage
    from polar.trainer.packing import Batch, pack
    from polar.trainer.rows import Row, grpo
    from polar.trainer.staleness import Staleness

__all__ = [
    "Batch",
    "Feed",
    "Group",
    "Row",
    "Staleness",
    "TrajectoryConsumer",
    "drop_zero_advantage",
    "grpo",
    "pack",
]

_MODULES = {
    "Batch": "packing",
    "Feed": "feeding",
    "Group": "groups",
    "Row": "rows",
    "Staleness": "staleness",
    "TrajectoryConsumer": "consumer",
    "drop_zero_advantage": "groups",
    "grpo": "rows",
    "pack": "packing",
}


def __getattr__(name: str) -> Any:
    """The names above, imported when they are first used: a Kafka client takes as long to import as all else together."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
