"""For trainers: trajectories and complete groups from Kafka, as numpy arrays, with a position that the trainer keeps.

    with TrajectoryConsumer() as consumer:
        for group in consumer.groups():
            ...

Nothing here decides what is trained: what a token's mask and logprob say is the builder's (`polar.types.trajectory`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polar.trainer.consumer import TrajectoryConsumer
    from polar.trainer.progress import Group

__all__ = ["Group", "TrajectoryConsumer"]


def __getattr__(name: str) -> Any:
    """The names above, imported when they are first used: a Kafka client takes as long to import as all else together."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(__all__)}")
    from polar.trainer import consumer, progress

    return getattr(progress if name == "Group" else consumer, name)
