"""The trainer: groups from Kafka, a gradient step, new weights for the engine, a checkpoint; until all steps are done.

    python -m examples.grpo_tiny.trainer --data DIR --model DIR --served DIR --engine URL --checkpoints DIR --seed N --steps N

Runs where torch is (`.venv-vllm`). Killed at any moment and started again, it goes on as if it had not been: a step's tasks have the
same ids again, the consumer's position is in the checkpoint, and the checkpoint's weights are the first thing that the engine gets.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from examples.grpo_tiny import checkpoint, weights
from examples.grpo_tiny.checkpoint import State, Step
from examples.grpo_tiny.learner import Drift, Learner
from examples.grpo_tiny.requests import Work
from examples.grpo_tiny.rollouts import groups_of
from examples.tiny_model import model as tiny
from polar import client, fleet
from polar.settings import Settings, load
from polar.trainer import Group, Row, TrajectoryConsumer, grpo
from polar.types.errors import NotReady
from polar.types.session import Status

LARGEST = 1e-3
"""Difference of a log-probability, engine against trainer, beyond which they are not one model."""


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
        self._work = Work(options.seed, options.builder)
        latest = checkpoint.newest(options.checkpoints)
        self._state = State() if latest is None else checkpoint.read(latest)
        self._learner = Learner(options.model if latest is None else latest, options.steps)
        if latest is not None:
            self._learner.optimiser.load_state_dict(torch.load(latest / checkpoint.OPTIMISER))
            print(f"goes on from version {self._state.version}", flush=True)

    async def run(self) -> None:
        """All steps that are left. Raises DriftError, NotReady, PushError and `polar.fleet`'s errors."""
        consumer = TrajectoryConsumer(settings=self._settings)
        if self._state.consumer is not None:
            consumer.load_state_dict(self._state.consumer)
        async with fleet.Controls(self._settings) as controls, client.SessionTable(self._settings) as table, consumer:
            # A predecessor may have died in a pause of its own.
            await self._push(controls, force=True)
            for number in range(self._state.version + 1, self._options.steps + 1):
                clock = Clock()
                with clock.part("rollouts"):
                    groups = await self._groups(number, table, consumer)
                rows = [row for group in groups for row in grpo(group, by_deviation=False)]
                with clock.part("comparison"):
                    drift = await asyncio.to_thread(self._compared, rows)
                with clock.part("update"):
                    await asyncio.to_thread(self._learner.step, number, rows, self._options.seed)
                steps = [*self._state.steps, _step(number, groups, rows, drift, clock)]
                self._state = State(steps, consumer.state_dict())
                # Before the engine gets them: whoever goes on from here has the weights that it may have sampled with.
                with clock.part("checkpoint"):
                    await asyncio.to_thread(self._save)
                with clock.part("push"):
                    await self._push(controls)
                print(_line(steps[-1]), flush=True)

    async def _groups(self, number: int, table: client.SessionTable, consumer: TrajectoryConsumer) -> list[Group]:
        prompts = self._options.prompts

        def on_group(count: int) -> None:
            if count == prompts // 2:
                print(f"step {number}: {count} of {prompts} groups", flush=True)

        return await groups_of(self._settings, self._work.step(number, prompts), table, consumer, on_group)

    def _compared(self, rows: Sequence[Row]) -> Drift:
        """The assertion after each reload: what was sampled since then was sampled by this model, every token of it."""
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

    async def _push(self, controls: fleet.Controls, *, force: bool = False) -> None:
        """The trainer's weights to the engine, between pause and resume, and their version to everyone."""
        async with controls.paused(force=force) as pause:
            await asyncio.to_thread(tiny.save_weights, self._learner.model, self._options.served / tiny.WEIGHTS)
            await asyncio.to_thread(weights.reload, self._options.engine, self._state.version)
            await pause.publish(self._state.version)


def _step(number: int, groups: Sequence[Group], rows: Sequence[Row], drift: Drift, clock: Clock) -> Step:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return Step(
        number=number,
        rewards={trajectory.session_id: trajectory.reward for trajectory in trajectories},
        malformed=sum(trajectory.status is Status.FAILED for trajectory in trajectories),
        calls=sum(trajectory.stats.calls for trajectory in trajectories),
        rows=len(rows),
        row_tokens=sum(map(len, rows)),
        trained_tokens=sum(int(row.loss_mask.sum()) for row in rows),
        compared_tokens=drift.tokens,
        largest_difference=drift.largest,
        mean_difference=drift.mean,
        seconds=clock.seconds,
        ended_at=time.time(),
    )


def _line(step: Step) -> str:
    known = [reward for reward in step.rewards.values() if reward is not None]
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in step.seconds.items())
    return (
        f"step {step.number}: mean reward {sum(known) / max(1, len(known)):.3f}, {step.malformed} malformed, {step.rows} rows, "
        f"largest difference {step.largest_difference:.1e}; seconds: {parts}"
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
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Exit code 1 where engine and trainer are not one model, 3 where something needed isn't there."""
    options = arguments()
    torch.set_num_threads(options.threads)
    try:
        asyncio.run(Trainer(options, load(options.data)).run())
    except (DriftError, NotReady, weights.PushError, fleet.FleetError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, DriftError) else 3)


if __name__ == "__main__":
    main()
