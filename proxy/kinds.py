"""What a call is for: the harness's main work, a sub-agent's, or a side call (a title, a router, a summary) that is not trained.

One table of rules, each named on the log beside the kind that it gave, so that its evidence can be questioned. The first that fits
counts; a call that none fits is main work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from proxy.chat import ChatRequest


class Kind(NamedTuple):
    """A call's kind, and the rule that said so; None for main work."""

    name: str
    rule: str | None = None


MAIN = Kind("main")
Lineage = Mapping[str, str]
RULES: list[tuple[Kind, Callable[[ChatRequest, Lineage], bool]]] = [
    (Kind("subagent", "lineage_agent"), lambda _, lineage: "agent" in lineage or "subagent" in lineage),
    (Kind("subagent", "lineage_parent_session"), lambda _, lineage: "parent_session" in lineage),
]


def kind_of(request: ChatRequest, lineage: Lineage | None) -> Kind:
    """By the first rule that fits."""
    told = lineage or {}
    return next((kind for kind, fits in RULES if fits(request, told)), MAIN)
