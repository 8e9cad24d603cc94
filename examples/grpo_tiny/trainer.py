"""The trainer: groups from Kafka, a gradient step, new weights for the engine, a checkpoint; until all steps are done.

    python -m examples.grpo_tiny.trainer --data DIR --model DIR --served DIR --engine URL --checkpoints DIR --seed N --steps N

Runs where torch is (`.venv-vllm`). Killed at any moment and started again, it goes on as if it had not been: a step's tasks have the
same ids again, the consumer's position is in the checkpoint, and the checkpoint's weights are the first thing that the engine gets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from examples.grpo_tiny import checkpoint
from examples.grpo_tiny.checkpoint import State, Step
from examples.grpo_tiny.learner import Drift, Learner
from examples.grpo_tiny.requests import Work
from examples.grpo_tiny.rollouts import groups_of, malformed
from examples.tiny_model import model as tiny
from polar import Client, Fleet, FleetError, InputError, NotReadyError, SessionTable, Settings, load_settings
from polar.trainer import Group, Row, TrajectoryConsumer, grpo, vllm_weights

LARGEST = 1e-3
"""Difference of a log-probability, engine against trainer, beyond which they are not one model."""

SPEAK_S = 300.0
"""At the first group after so long a trainer says how many there are."""

READ_S = 1.0
"""Kafka has no more, and none came for so long."""


class DriftError(RuntimeError):
    """What the engine samples from isn't what is trained."""


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began


class Trainer:
    """All that lives as long as the process."""

    def __init__(self, options: argparse.Namespace, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._work = Work(options.seed, options.builder, options.evaluator)
        latest = checkpoint.newest(options.checkpoints)
        self._state = State() if latest is None else checkpoint.read(latest)
        self._learner = Learner(options.model if latest is None else latest, options.steps)

    async def run(self) -> None:
        """All steps that are left. Raises DriftError, NotReadyError, PushError FleetError."""
        if self._state.version:
            print(f"goes on from version {self._state.version}", flush=True)
        consumer = TrajectoryConsumer(settings=self._settings)
        if self._state.consumer is not None:
            consumer.load_state_dict(self._state.consumer)
        async with Fleet(self._settings) as fleet, Client(self._settings).table() as table, consumer:
            # A predecessor may have died in a pause of its own.
            await self._push(fleet, force=True)
            for number in range(self._state.version + 1, self._options.steps + 1):
                clock = Clock()
                with clock.part("rollouts"):
                    groups = await self._groups(number, table, consumer)
                rows = [row for group in groups for row in grpo(group, by_deviation=False)]
                with clock.part("comparison"):
                    drift = await asyncio.to_thread(self._compared, rows)
                with clock.part("update"):
                    norm = await asyncio.to_thread(self._learner.step, number, rows, self._options.seed)
                steps = [*self._state.steps, _step(number, groups, rows, drift, norm, clock)]
                self._state = State(steps, consumer.state_dict())
                # Before the engine gets them: whoever goes on from here has the weights that it may have sampled with. How long this and
                # the push take is told by the next checkpoint, whose steps share their clocks with these.
                with clock.part("checkpoint"):
                    await asyncio.to_thread(self._save)
                with clock.part("push"):
                    await self._push(fleet)
                print(_line(steps[-1]), flush=True)

    async def check(self, name: str) -> None:
        """Compare an evaluation that has ended with the newest checkpoint, and write what was found beside it: the last reload's proof.

        Raises DriftError, NotReadyError.
        """
        rows: list[Row] = []
        reading = TrajectoryConsumer(settings=self._settings, topic="eval", timeout_s=READ_S)
        async with reading as consumer:
            async for group in consumer.groups():
                if group.task_id.startswith(f"{name}-"):
                    rows += grpo(group, by_deviation=False)
        drift = self._compared(rows)
        (self._options.checkpoints / checkpoint.CHECKED).write_text(json.dumps(asdict(drift)))
        print(f"{name}: largest difference {drift.largest:.1e} of {drift.tokens} tokens", flush=True)

    async def _groups(self, number: int, table: SessionTable, consumer: TrajectoryConsumer) -> list[Group]:
        prompts = self._options.prompts
        spoke = time.monotonic()

        def on_group(count: int) -> None:
            nonlocal spoke
            if count == max(1, prompts // 2) or time.monotonic() > spoke + SPEAK_S:
                spoke = time.monotonic()
                print(f"step {number}: {count} of {prompts} groups", flush=True)

        return await groups_of(self._settings, self._work.step(number, prompts), table, consumer, on_group=on_group)

    def _compared(self, rows: Sequence[Row]) -> Drift:
        """The assertion after each reload: what was sampled since then was sampled by this model, every token of it.

        Raises DriftError, NotReadyError where there is nothing to compare.
        """
        if not rows:
            raise NotReadyError(
                "no session has a reward and tokens to train; see `polar show` of one of them, and polar.log"
            )
        versions = {int(version) for row in rows for version in row.policy_versions[row.loss_mask == 1]}
        if versions != {self._state.version}:
            raise DriftError(f"tokens of the versions {sorted(versions)}, where {self._state.version} was published")
        drift = self._learner.drift(rows)
        if not drift.largest < LARGEST:
            raise DriftError(
                f"log-probabilities of engine and trainer differ by up to {drift.largest:.2g} (mean {drift.mean:.2g}) at version "
                f"{self._state.version}; less than {LARGEST:g} is rounding"
            )
        return drift

    def _save(self) -> None:
        made = checkpoint.begin(self._options.checkpoints, self._state.version)
        self._learner.save(made)
        checkpoint.finish(made, self._state)

    async def _push(self, fleet: Fleet, *, force: bool = False) -> None:
        """The trainer's weights to the engine, between pause and resume, and their version to everyone."""
        async with fleet.paused(force=force) as pause:
            print(f"step {self._state.version}: pushes", flush=True)
            await asyncio.to_thread(tiny.save_weights, self._learner.model, self._options.served / tiny.WEIGHTS)
            await asyncio.to_thread(vllm_weights.reload, self._options.engine, self._state.version)
            await pause.publish(self._state.version)


def _step(
    number: int, groups: Sequence[Group], rows: Sequence[Row], drift: Drift, gradient_norm: float, clock: Clock
) -> Step:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = {trajectory.session_id: trajectory.reward for trajectory in trajectories}
    assert len(rewards) == len(trajectories), "each session is in a step once"
    return Step(
        number=number,
        rewards=rewards,
        malformed=malformed(trajectories),
        calls=sum(trajectory.stats.calls for trajectory in trajectories),
        rows=len(rows),
        row_tokens=sum(map(len, rows)),
        trained_tokens=sum(int(row.loss_mask.sum()) for row in rows),
        compared_tokens=drift.tokens,
        largest_difference=drift.largest,
        mean_difference=drift.mean,
        gradient_norm=gradient_norm,
        seconds=clock.seconds,
        ended_at=time.time(),
    )


def _line(step: Step) -> str:
    known = [reward for reward in step.rewards.values() if reward is not None]
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in step.seconds.items())
    return (
        f"step {step.number}: mean reward {sum(known) / max(1, len(known)):.3f}, {step.malformed} malformed, "
        f"{len(step.rewards) - len(known)} not judged, {step.rows} rows, "
        f"largest difference {step.largest_difference:.1e}, gradient norm {step.gradient_norm:.2g}; seconds: {parts}"
    )


def arguments() -> argparse.Namespace:
    """What is said on the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="data folder of a running polar up")
    parser.add_argument("--model", type=Path, required=True, help="the model to begin with")
    parser.add_argument("--served", type=Path, required=True, help="the folder that the engine serves")
    parser.add_argument("--engine", required=True, help="its URL, without /v1")
    parser.add_argument("--checkpoints", type=Path, required=True, help="where they are, and go")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of the whole run")
    parser.add_argument("--prompts", type=int, required=True, help="tasks a step")
    parser.add_argument("--builder", required=True)
    parser.add_argument("--evaluator", required=True)
    parser.add_argument("--check", metavar="NAME", help="train nothing: compare that evaluation, which has ended")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Exit code 1 where engine and trainer are not one model, 2 for bad input, 3 where something needed isn't there."""
    options = arguments()
    torch.set_num_threads(options.threads)
    try:
        trainer = Trainer(options, load_settings(options.data))
        asyncio.run(trainer.run() if options.check is None else trainer.check(options.check))
    except (DriftError, InputError, NotReadyError, vllm_weights.PushError, FleetError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, DriftError) else 2 if isinstance(error, InputError) else 3)


if __name__ == "__main__":
    main()
