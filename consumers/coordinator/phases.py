"""The phases that wait for a slot and those in a worker's hand, and which stage each is about."""

from __future__ import annotations

from dataclasses import dataclass

from topics.types.session import Phase, Stage


@dataclass(frozen=True)
class Step:
    """A waiting phase: for which stage, and where a granted claim leads."""

    stage: Stage
    in_hand: Phase


WAITING: dict[Phase, Step] = {
    Phase.QUEUED: Step(Stage.INIT, Phase.INIT),
    Phase.READY: Step(Stage.RUN, Phase.RUNNING),
    Phase.RAN: Step(Stage.EVALUATE, Phase.EVALUATING),
}
HAND: dict[Phase, Stage] = {step.in_hand: step.stage for step in WAITING.values()}
