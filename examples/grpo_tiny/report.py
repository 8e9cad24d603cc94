"""What came of runs, as tables and a picture: python -m examples.grpo_tiny.report DIR/result.json … [--picture FILE.svg]"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from examples.grpo_tiny import picture
from examples.grpo_tiny.checkpoint import Step

UNJUDGED = 0.02
"""Share of an evaluation's sessions that may end without a reward; the mean of the others would hide more."""
LEARNED = 0.8
"""Mean reward of `picture.WINDOW` steps that counts as learned."""


@dataclass(frozen=True)
class HeldOut:
    """An evaluation."""

    rewards: list[float | None]
    malformed: int
    seconds: float

    @property
    def mean(self) -> float:
        return fmean(reward for reward in self.rewards if reward is not None)

    @property
    def tells(self) -> bool:
        """Whether so many were judged that the mean stands for all."""
        return unjudged(self.rewards) <= UNJUDGED * len(self.rewards)

    @property
    def solved(self) -> float:
        """The share of those judged that did all of it: a reward of 1."""
        return fmean(reward == 1 for reward in self.rewards if reward is not None)

    def __str__(self) -> str:
        return (
            f"mean reward {self.mean:.3f} of {len(self.rewards)} sessions, {self.malformed} malformed, "
            f"{unjudged(self.rewards)} not judged"
        )


@dataclass(frozen=True)
class Result:
    """A run, as `result.json` has it."""

    seed: int
    builder: str
    killed_at: int | None
    before: HeldOut
    after: HeldOut
    seconds: dict[str, float]
    """Wall clock, by phase."""
    processor: dict[str, float]
    """CPU seconds while it trained, by part."""
    steps: list[Step]
    last_difference: float | None = None
    """After the last reload, as each step's `largest_difference` is after the one before it; None: it wasn't compared."""

    @classmethod
    def read(cls, file: Path) -> Result:
        found: dict[str, Any] = json.loads(file.read_text())
        evaluated = {name: HeldOut(**found[name]) for name in ("before", "after")}
        return cls(**{**found, **evaluated, "steps": [Step(**step) for step in found["steps"]]})

    @property
    def largest_difference(self) -> float | None:
        """Over all reloads; None where the last wasn't compared."""
        if self.last_difference is None:
            return None
        return max(self.last_difference, *(step.largest_difference for step in self.steps))

    @property
    def means(self) -> list[float]:
        """Mean reward of each step."""
        return [fmean(reward for reward in step.rewards.values() if reward is not None) for step in self.steps]

    @property
    def smooth(self) -> list[float]:
        """By step: `picture.smoothed`."""
        return picture.smoothed(self.means)

    @property
    def trained(self) -> Counter[str]:
        """In how many steps each session was; one without a reward isn't trained on."""
        judged = (item for step in self.steps for item in step.rewards.items())
        return Counter(session for session, reward in judged if reward is not None)

    @property
    def learned_at(self) -> int | None:
        """The first step at which `picture.WINDOW` steps' mean is above `LEARNED`."""
        return next(
            (at + 1 for at, mean in enumerate(self.smooth) if at + 1 >= picture.WINDOW and mean > LEARNED), None
        )


def unjudged(rewards: Iterable[float | None]) -> int:
    """Sessions without a reward: they are in no mean."""
    return sum(reward is None for reward in rewards)


def text(results: Sequence[Result]) -> str:
    """All tables, as Markdown."""
    parts = [
        _table(*_learning(results)),
        _table(*_sizes(results)),
        _table(*_parts(results)),
        _table(*_processor(results)),
    ]
    return "\n".join(parts + [_trained(result) for result in results])


Table = tuple[list[str], Iterator[list[str]]]


def _learning(results: Sequence[Result]) -> Table:
    head = ["run", "held-out mean reward", "solved", "malformed", "not judged", "mean > 0.8 at step",
            "best, last 5-step mean", "largest difference", "training, all (s)"]  # fmt: skip
    return head, (
        [
            _name(result),
            f"{result.before.mean:.3f} → {result.after.mean:.3f}",
            f"{result.before.solved:.3f} → {result.after.solved:.3f}",
            f"{_malformed(result.before)} → {_malformed(result.after)}",
            f"{unjudged(result.before.rewards)}, {unjudged(result.after.rewards)}",
            str(result.learned_at or "-"),
            f"{max(result.smooth):.3f}, {result.smooth[-1]:.3f}",
            "not proven" if result.largest_difference is None else f"{result.largest_difference:.1e}",
            f"{result.seconds['training']:.0f}, {sum(result.seconds.values()):.0f}",
        ]
        for result in results
    )


def _sizes(results: Sequence[Result]) -> Table:
    head = [
        "run",
        "updates",
        "sessions",
        "calls",
        "rows",
        "tokens in rows",
        "tokens trained",
        "update (s a step)",
        "step (s)",
    ]
    return head, (
        [
            _name(result),
            str(len(result.steps)),
            f"{len(result.trained):,}",
            f"{sum(step.calls for step in result.steps):,}",
            f"{sum(step.rows for step in result.steps):,}",
            f"{sum(step.row_tokens for step in result.steps):,}",
            f"{sum(step.trained_tokens for step in result.steps):,}",
            f"{_mean_seconds(result, 'update'):.1f}",
            f"{sum(_mean_seconds(result, part) for part in _part_names(result)):.1f}",
        ]
        for result in results
    )


def _parts(results: Sequence[Result]) -> Table:
    names = _part_names(results[0])
    rows = ([_name(result), *(f"{_mean_seconds(result, name):.2f}" for name in names)] for result in results)
    return ["seconds of a step", *names], rows


def _processor(results: Sequence[Result]) -> Table:
    names = list(results[0].processor)
    rows = (
        [_name(result), *(f"{result.processor.get(name, 0) / len(result.steps):.2f}" for name in names)]
        for result in results
    )
    return ["CPU seconds of a step", *names], rows


def _trained(result: Result) -> str:
    """That a kill costs nothing: sessions, and how many of them were in more than one step."""
    twice = sum(count > 1 for count in result.trained.values())
    without = unjudged(reward for step in result.steps for reward in step.rewards.values())
    said = f"{_name(result)}: {len(result.trained):,} sessions trained on, {twice} of them in two steps, {without} not judged"
    if result.killed_at is None:
        return f"{said}.\n"
    killed = f"the trainer killed in step {result.killed_at}"
    return f"{said}, {killed}; seconds of a step without step {result.killed_at}, CPU seconds with all of it.\n"


def _part_names(result: Result) -> list[str]:
    """Of a step that tells all of them."""
    return max((list(step.seconds) for step in result.steps), key=len)


def _mean_seconds(result: Result, part: str) -> float:
    """Of the steps that tell it: the last's checkpoint is older than its own end, and so is a killed trainer's.

    Without the step in which the trainer was killed: its sessions had run when the second trainer asked for them.
    """
    whole = [step for step in result.steps if step.number != result.killed_at]
    told = [step.seconds[part] for step in whole if part in step.seconds]
    return fmean(told) if told else 0.0


def _malformed(evaluated: HeldOut) -> str:
    return f"{evaluated.malformed / len(evaluated.rewards):.3f}"


def _name(result: Result) -> str:
    name = f"seed {result.seed}" + ("" if result.builder == "prefix_merging" else f", {result.builder}")
    return name if result.killed_at is None else f"{name}, killed at {result.killed_at}"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="examples.grpo_tiny.report", description=str(__doc__).partition(":")[0])
    parser.add_argument("results", nargs="+", type=Path, metavar="result.json")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="the runs' reward curves")
    options = parser.parse_args()
    results = [Result.read(file) for file in options.results]
    print(text(results))
    if options.picture is not None:
        curves = [picture.Curve(_name(one), one.smooth, one.means, one.before.mean, one.after.mean) for one in results]
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        options.picture.write_text(picture.svg(curves))


if __name__ == "__main__":
    main()
