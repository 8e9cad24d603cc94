"""Routed experts and sampling masks of a trace, aligned to its tokens, for trainers that repeat the engine's forward pass.

Experts: a call's record has the rows of the tokens that were new to it; the calls that it continues have those before. A token that
several calls of a trace read has the row of the first of them, because that call's answer was sampled behind this row. After new weights
the rows of later calls differ, and no single row is right for all of them. The last token of a trace has no row: the engine never read it.
Calls with a `prompt_doubt` give nothing: their rows and masks belong to another prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from polar.trainer import stored
from polar.trainer.groups import Group
from topics.environment import blob_store
from topics.environment.blobs import BlobStore
from topics.environment.settings import Settings
from topics.types.completion import ReplayField
from topics.types.replay import RoutedExperts, SamplingMask, decode_experts, decode_mask, mask_of
from topics.types.tokens import count
from topics.types.trajectory import Call, Trajectory, path

UNROUTED = -1
"""The experts of a token whose row no call has."""
Experts = NDArray[np.int16]
Decoded = TypeVar("Decoded", RoutedExperts, SamplingMask)


class Replay:
    """Reads from the blob store. The blobs of one session at a time are kept in memory, since its traces share them."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._session_id: str | None = None
        self._read: dict[str, RoutedExperts | SamplingMask] = {}

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """From the store that `POLAR_BLOBS` names. Raises NotReadyError if a bucket needs an extra that isn't installed."""
        return cls(blob_store.cached(settings))

    def routed_experts(self, trajectory: Trajectory, trace: int) -> Experts | None:
        """The experts of each of the trace's n tokens: int16 [n, layers, top_k], UNROUTED where no call has them; a layer without experts
        has zeros. None: no call has any. If calls of the trace used models of other shapes, those of the last call's shape.

        Raises InputError for a blob that the store lacks or that is damaged, OSError if the store can't be read.
        """
        runs = list(_runs(trajectory, trace))
        by_id = {call.call_id: call for call in trajectory.calls}
        found: Experts | None = None
        # From the last to the first: earlier calls overwrite what they have.
        for call, _, end in reversed(runs):
            for part in self._chain(trajectory, call, by_id):
                if found is None:
                    found = np.full((_length(trajectory, trace), *part.experts.shape[1:]), UNROUTED, dtype=np.int16)
                if part.experts.shape[1:] == found.shape[1:]:
                    rows = part.experts[: max(end - part.start, 0)]
                    found[part.start : part.start + len(rows)] = rows
        return found

    def sampling_mask(self, trajectory: Trajectory, trace: int) -> SamplingMask | None:
        """The mask of each of the trace's n tokens, empty for tokens that weren't sampled or have no mask. None: no call has any.

        Raises as `routed_experts`.
        """
        supports: list[list[int]] = [[] for _ in range(_length(trajectory, trace))]
        has_any = False
        for call, first, end in _runs(trajectory, trace):
            if call.sampling_mask is not None and call.prompt_doubt is None:
                has_any = True
                mask = self._decoded(trajectory, call, "sampling_mask", call.sampling_mask, decode_mask)
                supports[first:end] = [mask.at(token).tolist() for token in range(end - first)]
        return mask_of(supports) if has_any else None

    def _chain(self, trajectory: Trajectory, call: Call, by_id: dict[str, Call]) -> Iterator[RoutedExperts]:
        """The rows of a call, then those of the calls that it continues, up to one that has none or a doubted prompt."""
        next_call: Call | None = call
        while next_call is not None and next_call.routed_experts is not None and next_call.prompt_doubt is None:
            part = self._decoded(trajectory, next_call, "routed_experts", next_call.routed_experts, decode_experts)
            yield part
            next_call = None if part.base is None else by_id.get(part.base)

    def _decoded(
        self, trajectory: Trajectory, call: Call, field: ReplayField, ref: str, decode: Callable[[bytes], Decoded]
    ) -> Decoded:
        if self._session_id != trajectory.session_id:
            self._session_id, self._read = trajectory.session_id, {}
        if ref not in self._read:
            at = f"{field} of call {call.call_id} of {trajectory.session_id}"
            self._read[ref] = stored.read(self._blobs, field, ref, at, decode)
        decoded: Decoded = self._read[ref]  # type: ignore[assignment]
        return decoded


def _length(trajectory: Trajectory, trace: int) -> int:
    return sum(count(trajectory.nodes[index].tokens) for index in path(trajectory, trajectory.traces[trace].leaf))


def _runs(trajectory: Trajectory, trace: int) -> Iterator[tuple[Call, int, int]]:
    """The calls whose sampled tokens are on a trace's path, in order, each with the range of these tokens in the trace.

    A path may leave an answer before its end. What a call has of the tokens before its range is of this trace: its prompt is the path.
    """
    first = at = 0
    sampler: int | None = None
    for index in path(trajectory, trajectory.traces[trace].leaf):
        node = trajectory.nodes[index]
        if node.call != sampler:
            if sampler is not None:
                yield trajectory.calls[sampler], first, at
            first, sampler = at, node.call
        at += count(node.tokens)
    if sampler is not None:
        yield trajectory.calls[sampler], first, at


def drop_uncaptured(group: Group, counts: Counter[str]) -> Group | None:
    """A rule that leaves out sessions with a call whose values weren't captured though its engine is set to, or are those of another prompt
    (`prompt_doubt`); reason `uncaptured`."""
    kept = [one for one in group.trajectories if not any(_is_lost(call) for call in one.calls)]
    if len(kept) < len(group.trajectories):
        counts["uncaptured"] += len(group.trajectories) - len(kept)
    return msgspec.structs.replace(group, trajectories=kept) if kept else None


def _is_lost(call: Call) -> bool:
    has_values = call.routed_experts is not None or call.sampling_mask is not None
    return bool(call.uncaptured) or (has_values and call.prompt_doubt is not None)
