"""The words of the token tree that trajectories, the lake and people share: why a call branches, how it drifts, why its tokens are masked.

The builder decides them (`consumers/token_tree`); trajectories hold their values as text.
"""

from __future__ import annotations

from enum import StrEnum


class Branch(StrEnum):
    """Why a call doesn't simply continue an earlier call."""

    ROOT = "root"
    """It continues no call: a first prompt, or a history that shares no answer with any other."""
    SUBAGENT = "subagent"
    """A root whose call is a sub-agent's, as a rule of the proxy recognised it."""
    COMPACTION = "compaction"
    """The first root of a thread after a call of kind `compaction` in the same thread, as headers show: it goes on from a summary."""
    FORK = "fork"
    """An earlier call continued the same parent and had ended when this call began."""
    PARALLEL = "parallel"
    """An earlier call continued the same parent and was still running when this call began."""
    RETRY = "retry"
    """An earlier answered call of its thread has exactly the same prompt and had ended when this call began."""
    SIBLING = "sibling"
    """An earlier answered call has exactly the same prompt, but this is no retry: another sample, or another thread."""
    END_OF_TURN = "end_of_turn"
    """Its prompt repeats an answer except for the last token: the engine's end token differs from the chat template's."""
    STRIPPED = "stripped"
    """Its prompt repeats an answer with a part left out and nothing in its place, as templates do with reasoning."""
    EDITED_HISTORY = "edited_history"
    """Its prompt continues an earlier call's prompt with another answer than was sampled there: edited or rendered differently."""
    MEDIA = "media"
    """It repeats an earlier prompt up to an image or audio that differs, and nothing above says more."""
    BASE_MISSING = "base_missing"
    """Its prompt is unknown, so it has no place in the tree: see `Masked`, also for the next two reasons."""
    INVALID_TOKENS = "invalid_tokens"
    CHAIN_DIFFERS = "chain_differs"


class Drift(StrEnum):
    """How faithfully a call's prompt repeats what was sampled before it; counted for sampled calls that have a history."""

    CLEAN = "clean"
    """It extends its parent's prompt and sampled tokens exactly, as the engine rendered it."""
    REALIGN = "realign"
    """It extends them exactly, because the proxy replaced a different rendering by the sampled tokens."""
    FORK = "fork"
    """It diverges from an answer: a branch starts, and the part of the answer that it doesn't repeat is trained on another trace."""
    QUARANTINE = "quarantine"
    """Its record can't be trusted: no place in the tree, another prompt than the engine read, or unusable logprobs. Its sampled tokens are
    masked."""


class Masked(StrEnum):
    """Why sampled tokens are trained in no trace. If several reasons hold, the first in this order counts."""

    BASE_MISSING = "base_missing"
    """The base of its prompt's delta isn't among the session's calls, has no place, or is shorter than the shared part."""
    INVALID_TOKENS = "invalid_tokens"
    """The bytes of its prompt or of its sampled tokens aren't token ids: not a whole number of them, or one is negative."""
    CHAIN_DIFFERS = "chain_differs"
    """The prompt that its delta gives isn't the one that the proxy saw: the hash chains differ."""
    PROMPT_DIFFERS = "prompt_differs"
    """The engine reports that it read another prompt than is recorded."""
    MEDIA_UNKNOWN = "media_unknown"
    """Its prompt holds an image that the engine fetched from a URL, so nobody knows what the engine saw."""
    INVALID_LOGPROBS = "invalid_logprobs"
    """The number of logprobs differs from the number of tokens, or a logprob isn't finite, or is the engine's placeholder."""
    DISOWNED = "disowned"
    """The proxy gave it up: no harness saw the answer."""
    SIDE_CALL = "side_call"
    """A title, a summary or a similar call, as a rule of the proxy recognised it."""
    REJECTED = "rejected"
    """As UNDELIVERED, and the proxy knows that the harness had received the answer whole before it repeated the request."""
    UNDELIVERED = "undelivered"
    """The same thread repeated the request with the same prompt, and the harness continued from the other answer."""
    FILTERED_STATUS = "filtered_status"
    """The task's filter `statuses` leaves out sessions with this status."""
    FILTERED_KIND = "filtered_kind"
    """The task's filter `kinds` leaves out this kind of call, which is trained by default."""
    FILTERED_ENGINE = "filtered_engine"
    """The task's filter `engines` leaves out this engine, for example because it serves another model."""
    FILTERED_GRAMMAR = "filtered_grammar"
    """The task's filter `grammar`: a grammar constrained its tokens, or was requested."""
    FILTERED_TRUNCATED_SAMPLING = "filtered_truncated_sampling"
    """The task's filter `truncated`: top_p, top_k or min_p truncated the distribution."""
    FILTERED_PENALISED = "filtered_penalised"
    """The task's filter `penalised`: a penalty or a bias changed the distribution."""
    FILTERED_NOT_PLAIN = "filtered_not_plain"
    """The task's filter `plain_only`: it isn't known to be sampled from the model's own distribution."""
    FILTERED_TRUNCATED = "filtered_truncated"
    """The task's filter `drop_truncated`: the answer was cut at a length limit."""
    FILTERED_MEDIA = "filtered_media"
    """The task's filter `drop_media`: its prompt has images or sounds."""
    FILTERED_LONG = "filtered_long"
    """The task's filter `max_tokens`: its prompt and sampled tokens exceed it."""
    FILTERED_SHORT = "filtered_short"
    """The task's filter `min_trainable_tokens`: its trace would train fewer."""
    NO_TRACE = "no_trace"
    """The builder made no trace that trains it. Polar's own builders never do this."""


FILTERS = frozenset(reason for reason in Masked if reason.startswith("filtered_"))
