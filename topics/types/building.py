"""Settings of Polar's own builders: a task's `builder.config`.

They are on the ground floor, so that `submit` rejects invalid settings without importing a builder. Plug-in builders check their settings
in their constructor, where they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from topics.types import field_errors
from topics.types.errors import InputError
from topics.types.session import Status

Kind = Literal[
    "main", "subagent", "compaction", "prewarm", "title", "summary", "router", "next_speaker", "commit_message", "web_search",
    "quota", "classifier", "memory", "suggestion", "side",
]  # fmt: skip
"""All kinds of call, as the proxy's rules (`proxy/call_kinds.py`) assign them."""
TRAINED: tuple[Kind, ...] = ("main", "subagent", "compaction")
"""Kinds of call that are trained: main work, sub-agents, and the summaries that work continues from. The others are side calls."""
COMPACTION: Kind = "compaction"
"""The kind of a call that summarises a conversation, which then goes on from the summary."""
SIDE: Kind = "side"
"""The kind of a side call that no rule knows, and that differs from the work of its thread (`proxy/session/work.py`)."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Filters(_Part):
    """Filters that exclude calls and traces from training; exclusions are counted by reason."""

    kinds: tuple[Kind, ...] = Field(default=TRAINED, min_length=1)
    """Kinds of call that are trained. Kinds of side calls may be added."""
    engines: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Engines whose tokens are trained, by their names in polar.toml; other engines' tokens are context. Name the policy's engine if
    sub-agents or titles use another model. None: all."""
    statuses: tuple[Status, ...] | None = Field(default=None, min_length=1)
    """Only sessions with these statuses are trained, for example `[COMPLETED]`. None: all."""
    drop_truncated: StrictBool = False
    """Mask answers that a length limit cut."""
    rejected: Literal["mask", "train"] = "mask"
    """Answers that the harness received whole and didn't use, because it asked again with the same prompt: mask them, or train each in a
    trace of its own."""
    drop_media: StrictBool = False
    """Mask calls whose prompt has images or sounds, for trainers that take text alone."""
    plain_only: StrictBool = False
    """Train only calls that are known to be sampled from the model's own distribution: temperature 1, nothing truncated, penalised or
    constrained by a grammar. A setting that isn't known counts against the call (docs/ratios.md)."""
    grammar: Literal["train", "mask"] = "train"
    """Calls that a grammar constrained, or whose request asked for one."""
    truncated: Literal["train", "mask"] = "train"
    """Calls whose distribution top_p, top_k or min_p truncated. (`drop_truncated` is about answers that a length limit cut.)"""
    penalised: Literal["train", "mask"] = "train"
    """Calls whose distribution a presence, frequency or repetition penalty changed, or a logit bias."""
    max_tokens: StrictInt | None = Field(default=None, gt=0)
    """Mask calls whose prompt and answer have more tokens; a trace ends with the last call that fits. None: any length."""
    min_trainable_tokens: StrictInt = Field(default=1, gt=0)
    """Drop traces that would train fewer tokens; 2 drops the rows that train only an `end_of_turn` token. Tokens that a short trace shares
    with another trace are trained there."""


class Options(_Part):
    """Settings of `per_request`."""

    rewards: Literal["all", "main_chain", "leaf"] = "all"
    """Traces that get the session's reward: all; those that train a call of the main agent's chain; the one that trains its last call
    (docs/builder.md, Settings)."""
    filters: Filters = Filters()


class MergingOptions(Options):
    """Settings of `prefix_merging`."""

    end_of_turn_token_id: StrictInt | None = None
    """Accepted for other systems' tasks, and ignored: the token ids show where turns meet."""


OPTIONS: Mapping[str, type[Options]] = {"per_request": Options, "prefix_merging": MergingOptions}
"""Settings class by builder name."""
FIELD = "builder.config"


def options(builder: str, config: Mapping[str, Any]) -> Options:
    """The settings of a builder in `OPTIONS`. Raises InputError for the first unknown or invalid one."""
    known = OPTIONS[builder]
    try:
        return known.model_validate(dict(config))
    except ValidationError as error:
        first = field_errors.first_error(error)
        field = ".".join((FIELD, *map(str, first["loc"])))
        reason = field_errors.reason(first)
        if first["type"] == "extra_forbidden":
            there_are = ", ".join(sorted((Filters if len(first["loc"]) > 1 else known).model_fields))
            reason = f"no such setting of this builder; there are: {there_are}"
        raise InputError(field, first["input"], reason) from None
