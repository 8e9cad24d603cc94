"""The files `reward.json` and `reward.txt`, in which a command writes its reward.

`reward.json` is a number, or an object with the number `reward` and with scores, which are numbers by name. `reward.txt` is a number as
text. Both are of Harbor's making (harbor 0.26, verifier/verifier.py). Only finite numbers count: Harbor refuses others too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

from consumers.runtimes.base import Runtime, raise_fault
from topics.types.errors import InputError

JSON, TEXT = "reward.json", "reward.txt"
SCORES = "evaluation_scores"
"""The artifact with the scores beside the reward, as JSON."""
REWARD = "reward"
SIZE_LIMIT = 1024 * 1024
"""Bytes of a file with a reward."""
SHOWN = 80
"""Characters of a bad reward in the error's message."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class BadRewardError(ValueError):
    """A file holds no reward; the message says why, as the end of a sentence."""


class UnreadableError(BadRewardError):
    """It can't be read: something of the run's is in the way."""


@dataclass(frozen=True)
class Reward:
    """The reward that a command wrote."""

    value: float
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def artifacts(self) -> dict[str, bytes]:
        return {SCORES: json.dumps(self.scores).encode()} if self.scores else {}

    @property
    def reason(self) -> str | None:
        """The scores, for people."""
        scores = ", ".join(f"{name} {score:g}" for name, score in self.scores.items())
        return f"scores: {scores}" if scores else None


async def written(runtime: Runtime, folder: PurePosixPath, name_in_json: str = REWARD) -> Reward | None:
    """The reward in the folder; None if there is none. An empty file counts as none. Raises BadRewardError."""
    for name, read in ((JSON, partial(from_json, name=name_in_json)), (TEXT, from_text)):
        try:
            data = await runtime.read_file(folder / name, SIZE_LIMIT + 1)
        except FileNotFoundError:
            continue
        except (InputError, OSError) as error:
            raise_fault(error)
            raise UnreadableError(f"{name} can't be read: {error}") from None
        if len(data) > SIZE_LIMIT:
            raise BadRewardError(f"{name} is larger than {SIZE_LIMIT} bytes")
        if data.strip():
            return read(data)
    return None


def from_json(data: bytes, name: str = REWARD) -> Reward:
    """The reward in a `reward.json`. `name`: the reward's among the numbers. Raises BadRewardError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRewardError(f"{JSON} isn't JSON: {error}") from None
    if not isinstance(value, dict):
        return Reward(_number(value, JSON))
    if name not in value:
        raise BadRewardError(f"{JSON} has no `{name}`; it has {_shown(list(value))}")
    numbers = {key: _number(score, f"{key!r} of {JSON}"[:SHOWN]) for key, score in value.items()}
    return Reward(numbers.pop(name), numbers)


def from_text(data: bytes) -> Reward:
    """The reward in a `reward.txt`. Raises BadRewardError."""
    text = data.decode(errors="replace").strip()
    if _NUMBER.fullmatch(text) is None or not math.isfinite(value := float(text)):
        raise BadRewardError(f"{TEXT} must hold a finite number, got {_shown(text)}")
    return Reward(value)


def _number(value: object, place: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float can hold
            if math.isfinite(number := float(value)):
                return number
    raise BadRewardError(f"{place} must be a finite number, got {_shown(value)}")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
