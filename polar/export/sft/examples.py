"""One session's rows of a dataset: each trace that trains something is one.

Pure. Its tokens are the trace's own, so nothing is tokenized again; its messages are those of the trace's last call, with the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polar.export.sessions import ExportedSession, Finished
from topics.types.tokens import Ids
from topics.types.trajectory import expand

IGNORED = -100
"""The label of a token that isn't trained, in PyTorch's cross-entropy and in Transformers."""


@dataclass(frozen=True)
class Example:
    """A row of the dataset."""

    session_id: str
    task_id: str
    trace_id: str
    repository: str | None
    reward: float
    messages: list[dict[str, Any]]
    """Canonical chat messages, as Chat Completions spells them; the last one is the assistant's."""
    tools: list[dict[str, Any]]
    """The definitions of the tools that the last call offered."""
    token_ids: Ids
    """int32 [n]"""
    labels: NDArray[np.int32]
    """int32 [n], the token's id where the trace trains it, otherwise IGNORED."""
    gap: str | None
    """Why the messages aren't known; None: they are."""
    has_media: bool
    """Whether the prompt holds images or sounds, for which the tokens are only placeholders."""

    @property
    def trained_tokens(self) -> int:
        return int((self.labels != IGNORED).sum())


def examples(finished: Finished, session: ExportedSession) -> list[Example]:
    """The rows of a session with a reward, in the order of its traces."""
    assert finished.reward is not None, "acceptance has refused sessions without a reward"
    trajectory = session.trajectory
    made = []
    for trace in trajectory.traces:
        if not trace.trains:
            continue
        sampler = trajectory.nodes[trace.leaf].call
        assert sampler is not None, "a trace ends with what a call sampled"
        last = session.calls[sampler]
        expanded = expand(trajectory, trace)
        made.append(
            Example(
                finished.session_id,
                finished.task_id,
                trace.trace_id,
                finished.repository,
                finished.reward,
                [*last.messages, *([last.answer] if last.answer else [])],
                last.tools,
                expanded.token_ids,
                np.where(expanded.loss_mask == 1, expanded.token_ids, np.int32(IGNORED)),
                last.gap,
                bool(expanded.media),
            )
        )
    return made
