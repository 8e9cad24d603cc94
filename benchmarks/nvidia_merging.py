"""NVIDIA Polar's `prefix_merging`, transcribed from a description of it, as a baseline: grouping by last prompts, splitting at end-of-turn.

Written from its published behaviour (arXiv 2605.24220 and its repository's), not copied, and kept as simple as it can be: token ids are
Python lists, each completion holds its whole prompt, and a trace is extracted once for grouping and once more for merging. Where theirs
copies more often this one is faster.

(a) In order of response, a completion joins the chain whose last prompt is the longest prefix of its own; else it starts one.
(b) A chain's stream is its first answer, then for each next completion what stands between (masked) and its answer (trained). What stands
    between is found by splitting the prompt's growth at the first end-of-turn token.
(c) Where there is none the rest of the chain is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise


@dataclass
class Asked:
    """A completion as that builder gets it."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]


@dataclass
class Merged:
    """A chain's trace; `loss_mask` and `logprobs` are as long as `response_ids`."""

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]

    @property
    def trained(self) -> int:
        return sum(self.loss_mask)


def merged(session: Sequence[Asked]) -> list[Merged]:
    """The traces of a session."""
    return [_finished(chain) for chain in _grouped(session)]


def _grouped(session: Sequence[Asked]) -> list[list[Asked]]:
    chains: list[list[Asked]] = []
    for asked in session:
        extracted = _extracted(asked)
        fitting = [chain for chain in chains if _is_prefix(chain[-1].prompt_ids, extracted.prompt_ids)]
        if fitting:
            max(fitting, key=lambda chain: len(chain[-1].prompt_ids)).append(extracted)
        else:
            chains.append([extracted])
    return chains


def _extracted(asked: Asked) -> Asked:
    return Asked(list(asked.prompt_ids), list(asked.response_ids), list(asked.logprobs))


def _is_prefix(tip: list[int], prompt: list[int]) -> bool:
    return bool(tip) and prompt[: len(tip)] == tip


def _finished(chain: list[Asked]) -> Merged:
    first = deepcopy(chain[0])
    end_of_turn = first.response_ids[-1]
    trace = Merged(first.prompt_ids, first.response_ids, [1] * len(first.response_ids), first.logprobs)
    for before, following in pairwise(chain):
        after = deepcopy(following)
        tail = after.prompt_ids[len(before.prompt_ids) :]
        if end_of_turn not in tail:
            break  # the rest of the chain is dropped
        at = tail.index(end_of_turn)
        between = tail[at + 1 :] if before.response_ids[-1] == end_of_turn else tail[at:]
        trace.response_ids += between + after.response_ids
        trace.loss_mask += [0] * len(between) + [1] * len(after.response_ids)
        trace.logprobs += [0.0] * len(between) + after.logprobs
    return trace
