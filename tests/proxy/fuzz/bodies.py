"""Requests as harnesses send them, from `bodies.json`: a whole conversation and a short one for each dialect. Fuzzing begins from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CallSpec:
    """A request that is answered with 200."""

    dialect: str
    target: str
    body: dict[str, Any]
    roles: str
    """Roles of the messages that the model reads."""
    tools: str
    """Names of the tools that the model is shown."""

    def __str__(self) -> str:
        return f"{self.dialect} {self.target}"


def _calls() -> Iterator[CallSpec]:
    for dialect, requests in json.loads(Path(__file__).with_name("bodies.json").read_text()).items():
        for request in requests:
            for target in request["targets"]:
                counts_whole_request = target.endswith(":countTokens")
                body = {"generateContentRequest": request["body"]} if counts_whole_request else request["body"]
                yield CallSpec(dialect, target, body, request["roles"], request["tools"])


CALLS = [*_calls()]
