"""What a task may ask of the builders that come with Polar: `builder.config`, as people write it.

Stands on the floor, so that `submit` refuses what no builder would take without importing any. Other people's builders have settings of
their own, which their constructor checks where they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from topics.types.errors import InputError
from topics.types.session import Status

Kind = Literal[
    "main",
    "subagent",
    "compaction",
    "prewarm",
    "title",
    "summary",
    "router",
    "next_speaker",
    "commit_message",
    "web_search",
    "quota",
]
"""All kinds of call: what the proxy's rules (`proxy/call_kinds.py`) give."""
TRAINED: tuple[Kind, ...] = ("main", "subagent", "compaction")
"""Kinds of call that are trained: main work, a sub-agent's, and the summaries that work goes on from. The others are side calls."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Filters(_Part):
    """What is left out of training, beside what can't be proven; each is counted under its reason."""

    kinds: tuple[Kind, ...] = Field(default=TRAINED, min_length=1)
    """Kinds of call that are trained; a side call's kind may be among them."""
    engines: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Engines whose tokens are trained, by their names in the proxies' settings; what others sampled is context. None: all."""
    statuses: tuple[Status, ...] | None = Field(default=None, min_length=1)
    """Sessions that end otherwise have nothing to train; None: however they end."""
    drop_truncated: StrictBool = False
    """Leave out answers that a length limit cut."""
    max_tokens: StrictInt | None = Field(default=None, gt=0)
    """Calls whose prompt and sampled tokens are more are left out; a trace ends with the last that fits."""
    min_trainable_tokens: StrictInt = Field(default=1, gt=0)
    """Traces that would train fewer are left out."""


class Options(_Part):
    """Of `per_request`."""

    rewards: Literal["all", "main_chain", "leaf"] = "all"
    """Which traces take the session's reward: all; those that train a call of the main agent's chain; the one that trains its last."""
    filters: Filters = Filters()


class MergingOptions(Options):
    """Of `prefix_merging`."""

    end_of_turn_token_id: StrictInt | None = None
    """Taken because other systems' tasks carry it, and not needed: the ids tell where turns meet."""


OPTIONS: Mapping[str, type[Options]] = {"per_request": Options, "prefix_merging": MergingOptions}
"""By name of the builder."""
FIELD = "builder.config"


def options(builder: str, config: Mapping[str, Any]) -> Options:
    """The settings of one of `OPTIONS`' builders. Raises InputError for the first that is unknown or of a wrong kind."""
    known = OPTIONS[builder]
    try:
        return known.model_validate(dict(config))
    except ValidationError as error:
        wrong = error.errors()
        first = next((one for one in wrong if one["type"] == "extra_forbidden"), wrong[0])
        field = ".".join((FIELD, *map(str, first["loc"])))
        reason = first["msg"]
        if first["type"] == "extra_forbidden":
            there_are = ", ".join(sorted((Filters if len(first["loc"]) > 1 else known).model_fields))
            reason = f"no such setting of this builder; there are: {there_are}"
        raise InputError(field, first["input"], reason) from None
