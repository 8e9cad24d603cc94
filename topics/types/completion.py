"""A captured model call as it is stored on the log.

Prompt and messages are deltas against an acknowledged call of the claim (protocol 21): `base` names that call, `shared` counts how much of
its prompt + sampled tokens (or messages + answer) is common, and `rest` follows. Without a base `shared` is 0 and `rest` is everything.
`topics/calls/delta.py` makes the deltas, `topics/calls/resolver.py` expands them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Literal

import msgspec

ReplayField = Literal["routed_experts", "sampling_mask"]
"""Fields of a Completion that name a blob for trainers to replay (`topics/types/replay.py`)."""
JUDGE = "judge"
"""Kind of the calls that an evaluator makes, by their key (`topics/environment/judge_keys.py`)."""


class CallOutcome(StrEnum):
    """How the proxy saw a call end."""

    ANSWERED = "answered"
    """The engine answered; the harness got it once this record was acknowledged."""
    FAILED = "failed"
    """No usable answer; the harness got an error."""
    ABANDONED = "abandoned"
    """The harness hung up, or its key was closed, before an answer."""


GREEDY = 1e-5
"""Below this temperature vLLM takes the likeliest token (`_SAMPLING_EPS`)."""
FREE = "none"
"""`Sampling.grammar_source` of a call that no grammar constrained, which is known."""
UNKNOWN = "unknown"
"""A fact that nobody reports."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call was sampled, as far as it is known. None: the engine's own default, whatever that is."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    truncated: bool = False
    """Sampled from a truncated distribution (top_p, top_k, min_p); a trainer's logprobs need that transform also."""
    grammar: bool = False
    """A grammar constrained the tokens, or the engine was asked for one. False alone doesn't say that none did: see `grammar_source`."""
    grammar_source: str = UNKNOWN
    """What the grammar came from: `response_format`, `tool_choice` (a required or forced tool), `strict_tools`, `parallel_tool_calls` (one
    call at a time), or `engine`, which constrains tool calls unasked. `none`: it is known that there was none. `unknown`: nobody knows, as
    in older records."""
    stop: list[str] = []
    """Strings that end the answer."""
    logit_bias: dict[str, float] = {}
    """Added to logits, by token id."""

    @property
    def greedy(self) -> bool:
        """The recorded logprob doesn't describe the choice, because the choice was certain."""
        return self.temperature is not None and self.temperature < GREEDY

    @property
    def penalised(self) -> bool:
        """A penalty or a bias changed the logits."""
        return (
            bool(self.presence_penalty or self.frequency_penalty)
            or self.repetition_penalty not in (None, 1)
            or bool(self.logit_bias)
        )

    @property
    def known(self) -> bool:
        """Whether each setting that changes processed logprobs is known."""
        return None not in (
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
        )

    @property
    def otherwise_plain(self) -> bool:
        """Known to be neither truncated nor penalised nor constrained: only the temperature may differ from plain sampling."""
        is_unchanged = self.top_p == 1 and not self.truncated and not self.penalised
        return self.known and is_unchanged and self.grammar_source == FREE

    @property
    def plain(self) -> bool:
        """Known to be sampled from the model's own distribution: temperature 1, nothing truncated, penalised or constrained.

        The logprob is then that of an importance ratio, and the same in both modes of logprobs (docs/ratios.md).
        """
        return self.temperature == 1 and self.otherwise_plain


def truncates(top_p: float | None, top_k: int | None, min_p: float | None) -> bool:
    """Whether these settings are known to truncate a distribution."""
    return (top_p is not None and top_p < 1) or (top_k is not None and top_k > 0) or (min_p is not None and min_p > 0)


class TokenDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt: the first `shared` tokens of the base's prompt + sampled tokens, then `rest`."""

    rest: bytes
    """int32 LE."""
    shared: int = 0
    base: str | None = None
    """Call id; None: `rest` is the whole prompt."""
    chain: bytes = b""
    """Last link of the hash chain over the prompt's whole blocks of 256 tokens; empty for a shorter prompt. The
    tokens are hashed with the digests of images among them (`topics/calls/media_marks.py`)."""


class MessageDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The canonical messages: the first `shared` of the base's messages + answer, then `rest`."""

    rest: bytes
    """JSON array of canonical chat messages."""
    shared: int = 0
    base: str | None = None


class PolicySpan(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens `[start, end)` of one policy version; an array on the wire, of three in older records."""

    version: int
    start: int
    end: int
    publication: int | None = None
    """As `Completion.publication`."""


class Medium(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image or a sound in a prompt, where the token ids hold only placeholders."""

    digest: str
    """SHA-256 of its bytes, in hex."""
    kind: str = "image"
    """`image` or `audio`."""
    position: int | None = None
    """Number of the prompt's tokens before it, none of which depends on it. In mode `tokens` this is the index of its first placeholder; in
    mode `chat` the end of the earlier call that the prompt continues. None: unknown, so every token may depend on it."""
    media_type: str | None = None
    """As `image/png`; None: unknown."""
    blob: str | None = None
    """Reference to its bytes in the blob store; None: they weren't kept."""
    unproven: bool = False
    """The engine fetched it from a URL: `digest` is that of the URL, and its bytes are unknown."""


def are_whole(spans: Sequence[PolicySpan], tokens: int) -> bool:
    """Whether the ascending spans cover `tokens` tokens without gaps."""
    ends = [0, *(span.end for span in spans)]
    return (
        ends[-1] == tokens
        and all(start < end for start, end in pairwise(ends))
        and all(span.start == before for span, before in zip(spans, ends, strict=False))
    )


class CallError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a call has no answer."""

    code: str
    message: str
    status: int | None = None
    """The engine's HTTP status; None without a response."""


class Completion(msgspec.Struct, frozen=True, tag="completion", omit_defaults=True):
    """One model call. Key: session id. Written by the proxy, and acknowledged before the answer is sent to the harness."""

    call_id: str
    session_id: str
    attempt: int
    claim_id: str
    outcome: CallOutcome
    dialect: str
    engine: str
    received_at: int
    """Unix ms on the proxy's clock."""
    completed_at: int
    prompt: TokenDelta
    messages: MessageDelta
    sampled: bytes = b""
    """int32 LE; empty unless answered."""
    logprobs: bytes = b""
    """float32 LE, as many as `sampled`."""
    logprobs_mode: str = "processed"
    """The engine's: `raw`, `processed` (after temperature and truncation), or `unknown`."""
    answer: bytes = b""
    """JSON: the canonical assistant message; empty unless answered."""
    tools: bytes | None = None
    """JSON array of tool definitions if they differ from the base's; None: equal to the base's, or none without a base."""
    finish_reason: str | None = None
    stop_sequence: str | None = None
    """The stop string that ended the answer, whose last token then doesn't end a turn."""
    model_requested: str | None = None
    model_served: str | None = None
    policy_version: int | None = None
    """Version of the weights that sampled it, or its first token if `policy_spans` is set; None: unknown."""
    sampling: Sampling = Sampling()
    reasoning_effort: str | None = None
    """As requested; the prompt is rendered from it, the messages and the tools."""
    tool_choice: str | None = None
    """A choice that may change the prompt: `none`, or `function:` and the only function that may be called. None: the model chose."""
    kind: str = "main"
    """`main`, or the side call that a rule recognised (`title`, `summary`, …). JUDGE: an evaluator's call, which belongs to no run."""
    kind_rule: str | None = None
    lineage: dict[str, str] | None = None
    """The harness's own session, thread, agent, parent and retry headers, by canonical name."""
    stream: bool = False
    error: CallError | None = None
    choice: int = 0
    """Index among the answers to one request (OpenAI's `n`); they are siblings, and none supersedes another."""
    stored_from: int | None = None
    """Another call may continue this one (OpenAI's `store`): index of the first message that it inherits, after this call's own
    instructions. None: not stored."""
    policy_spans: list[PolicySpan] = []
    """Set if the engine reports that weights changed within the answer: ascending, without gaps, over all of `sampled`. Empty:
    `policy_version` holds for every token."""
    realigned: int = 0
    """Tokens mode: prompt tokens kept as they were sampled, where the engine's own rendering would spell them differently."""
    unsaid_calls: int = 0
    """Tokens mode: sampled tool calls that weren't sent to the harness, which takes one at a time."""
    publication: int | None = None
    """Offset on `polar.fleet` of the PolicyVersion that published the weights of `policy_version`: a number that is used twice has two.
    None: unknown."""
    prompt_doubt: str | None = None
    """Why the engine may have read another prompt than is recorded, as it reports itself; None: nothing shows that."""
    rejects: list[str] = []
    """Earlier calls of its thread with this very prompt whose answers the harness had received whole, and asked again. Each is named by
    the first call that asks again."""
    media: list[Medium] = []
    """The images and sounds that begin in `prompt.rest`, in the prompt's order; those before them are the base's. If one of them begins in
    the shared part, the list is that of the whole prompt: more is known of the base's now, for example where one is stored."""
    routed_experts: str | None = None
    """Blob reference: the experts that the model's layers chose for each token. None: not captured."""
    sampling_mask: str | None = None
    """Blob reference: the tokens that truncation left to choose from, for each sampled token. None: not captured."""
    uncaptured: dict[str, str] = {}
    """What the engine's setting `capture` names and this record lacks, `routed_experts` or `sampling_mask`, with the reason: `missing` (the
    engine sent none), `malformed`, `too_large`, `busy` (too much waited to be stored), or `unstored` (the blob store failed)."""
    client: str | None = None
    """The client's name and version as it reports them in the header User-Agent, at most 200 characters. None: it sent none."""
