"""The evaluator `composite`: the weighted sum of other evaluators' rewards, some of which may be gates.

The evaluators run one after another in the evaluation's sandbox, in the order of the list. `TaskSettings` and `PartSettings` have the
settings. All parts get the task's `evaluator.env`. The sum is not normalised.

A part without a reward ends the evaluation: the whole has no reward either. Only a gate that failed before counts, as it had ended the
evaluation. Rewards of calls are weighted and summed like rewards; after a failed gate there are none.

`case.budget_s` of a part is its share of the remaining time: what is left, divided by the number of parts that are left. The commands of
Polar's own evaluators end within it; an evaluator that ignores it can use up the time of the next ones. Files that one part changes are so
for the next ones: code of the agent that a part runs can prepare them. What protecting parts keep is put back before the first part runs.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from consumers.evaluators import base, settings
from consumers.evaluators.base import REASON_LIMIT, Case, EvaluationError, Evaluator, Protecting, Verdict
from consumers.plug_in_settings import Expected
from consumers.runtimes.base import Runtime
from topics.environment import registry
from topics.types.errors import InputError

PARTS_LIMIT = 20

_BETWEEN = "; "
"""Stands between the reasons of two parts."""


class PartSettings(msgspec.Struct, frozen=True):
    """A part of a `composite`: an evaluator with its weight."""

    strategy: Annotated[str, Expected("must name an evaluator")]
    """An evaluator's name, or `module:Class`; also `composite`."""
    config: Annotated[dict[str, Any], Expected("must be an object with the evaluator's settings")] = {}
    """Its settings."""
    weight: float = 1.0
    """The reward is the sum of weight × reward over all parts. It may be 0 or negative."""
    at_least: float | None = None
    """Makes the part a gate: with a lower reward of this part, the whole reward is 0.0, and later parts don't run."""
    name: (
        Annotated[
            str,
            Meta(pattern=r"^[A-Za-z0-9_-]+\Z", max_length=64),
            Expected("must be 1 to 64 letters, digits, _ or -"),
        ]
        | None
    ) = None
    """The beginning of its artifacts' names (`tests.evaluation_output`) and of its reason. null: the name of the strategy. Each part
    has its own."""


class TaskSettings(msgspec.Struct, frozen=True):
    """Settings of a task."""

    parts: Annotated[
        list[PartSettings],
        Meta(min_length=1, max_length=PARTS_LIMIT),
        Expected(f"must be a list of 1 to {PARTS_LIMIT} evaluators"),
    ]
    """The evaluators, in the order in which they run."""

    def __post_init__(self) -> None:
        if not any(part.weight for part in self.parts):
            raise settings.refused("parts", self.parts, "every weight is 0, so every reward would be 0")


@dataclass(frozen=True)
class Part:
    """An evaluator of the list, with its weight."""

    field: str
    """Where the task has it: `evaluator.config.parts[0]`."""
    name: str
    strategy: str
    config: settings.Config
    weight: float
    at_least: float | None
    """None: it is no gate."""

    @classmethod
    def of(cls, field: str, found: PartSettings) -> Part:
        name = found.name or found.strategy.rpartition(":")[2]
        return cls(field, name, found.strategy, found.config, found.weight, found.at_least)

    def check(self) -> None:
        """Raises InputError if its strategy isn't known, or refuses its config."""
        registry.check_name(registry.Kind.EVALUATOR, f"{self.field}.strategy", self.strategy)
        with self._located():
            registry.try_out(registry.Kind.EVALUATOR, self.strategy, lambda plug_in: plug_in(self.config))

    def make(self) -> Evaluator:
        with self._located():
            evaluator: Evaluator = registry.load(registry.Kind.EVALUATOR, self.strategy)(self.config)
        return evaluator

    async def keep(self, runtime: Runtime) -> None:
        with self._located():
            await base.keep(self.strategy, self.config, runtime)

    async def verdict(self, evaluator: Evaluator, case: Case) -> Verdict:
        """Its verdict. Artifacts have their whole names, in the verdict and in the EvaluationError that this raises."""
        try:
            with self._located():
                verdict = base.checked(await evaluator.evaluate(case))
        except EvaluationError as error:
            message, artifacts = f"{self.name}: {error}", self._named(error.artifacts)
            raise EvaluationError(error.code, message, artifacts, is_infra=error.is_infra) from error
        return replace(verdict, artifacts=self._named(verdict.artifacts))

    def reason(self, verdict: Verdict, limit: int) -> str:
        """Its share of the whole reward, and why, in at most `limit` characters."""
        reward = "no reward" if verdict.reward is None else f"{verdict.reward:g} × {self.weight:g}"
        return f"{self.name} {reward}{f': {verdict.reason}' if verdict.reason else ''}"[:limit]

    def _named(self, artifacts: Mapping[str, bytes]) -> dict[str, bytes]:
        return {f"{self.name}.{name}": data for name, data in artifacts.items()}

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Let errors name a setting by its place in the task."""
        try:
            yield
        except InputError as error:
            if error.field == settings.PLACE or error.field.startswith(f"{settings.PLACE}."):
                error.move_to(f"{self.field}.config{error.field.removeprefix(settings.PLACE)}")
            raise


class Composite:
    """See `base.Protecting`."""

    settings_type = TaskSettings

    def __init__(self, config: settings.Config) -> None:
        self._parts = parts_of(config)
        for part in self._parts:
            part.check()

    @cached_property
    def _evaluators(self) -> list[Evaluator]:
        """Made when they are needed: `submit` imports no `module:Class`."""
        return [part.make() for part in self._parts]

    async def keep(self, runtime: Runtime) -> None:
        for part in self._parts:
            await part.keep(runtime)

    async def restore(self, runtime: Runtime) -> str | None:
        try:
            evaluators = self._evaluators
        except InputError:
            return None  # the task's mistake; raised here it would count as the run's, and `evaluate` raises it
        for part, evaluator in zip(self._parts, evaluators, strict=True):
            if isinstance(evaluator, Protecting) and (reason := await evaluator.restore(runtime)) is not None:
                return f"{part.name}: {reason}"
        return None

    async def evaluate(self, case: Case) -> Verdict:
        clock = asyncio.get_running_loop().time
        ends = None if case.budget_s is None else clock() + case.budget_s
        limit = REASON_LIMIT // len(self._parts) - len(_BETWEEN)
        rewards: list[float] = []
        call_rewards: dict[str, float] = {}
        artifacts: dict[str, bytes] = {}
        reasons: list[str] = []
        for number, (part, evaluator) in enumerate(zip(self._parts, self._evaluators, strict=True)):
            share = None if ends is None else max(0.0, ends - clock()) / (len(self._parts) - number)
            try:
                verdict = await part.verdict(evaluator, replace(case, budget_s=share))
            except EvaluationError as error:
                error.artifacts = {**artifacts, **error.artifacts}
                raise
            artifacts |= verdict.artifacts
            reasons.append(part.reason(verdict, limit))
            if verdict.reward is None:
                return Verdict(None, artifacts=artifacts, reason=_BETWEEN.join(reasons))
            if part.at_least is not None and verdict.reward < part.at_least:
                # The failed gate first: the reason may be cut.
                why = f"{part.name} is less than {part.at_least:g}"
                return Verdict(0.0, artifacts=artifacts, reason=_BETWEEN.join((why, *reasons)))
            rewards.append(part.weight * verdict.reward)
            for call, reward in (verdict.call_rewards or {}).items():
                call_rewards[call] = call_rewards.get(call, 0.0) + part.weight * reward
        return Verdict(math.fsum(rewards), call_rewards or None, artifacts, _BETWEEN.join(reasons))


def parts_of(config: settings.Config) -> list[Part]:
    """The parts in a task's `evaluator.config`. Raises InputError for the first bad setting."""
    listed = config.get("parts")
    if isinstance(listed, list):
        # Read one by one, so that errors name the part.
        read = [settings.read(part, PartSettings, _field(number)) for number, part in enumerate(listed)]
        config = {**config, "parts": read}
    found = settings.read(config, TaskSettings)
    parts = [Part.of(_field(number), part) for number, part in enumerate(found.parts)]
    names = Counter(part.name for part in parts)
    for part in parts:
        if names[part.name] > 1:
            raise InputError(f"{part.field}.name", part.name, "is the name of several parts; give each its own")
    return parts


def _field(number: int) -> str:
    return f"{settings.PLACE}.parts[{number}]"
