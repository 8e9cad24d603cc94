"""A tiny model learns by GRPO, all of it on this machine: python -m examples.grpo_tiny --seed 1 --out DIR

Makes the model (SFT), starts vLLM and Polar, evaluates on held-out tasks, trains, evaluates again, and writes DIR/result.json and
DIR/report.md. `--kill-at N` kills the trainer (SIGKILL) in mid-step N and starts it again;
`--kill-in push` as it pushes that step's weights, with fleet and engine paused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from examples.grpo_tiny import checkpoint, costs, report, system
from examples.grpo_tiny.programs import Program, ProgramError, follow
from examples.grpo_tiny.report import HeldOut, Result, unjudged
from examples.grpo_tiny.requests import EVALUATOR, Work
from examples.grpo_tiny.rollouts import groups_of, malformed
from examples.grpo_tiny.system import System
from examples.vllm_cpu.serve import PYTHON, Server, ServerError, environment, serving
from polar import Client, InputError, NotReadyError
from polar.trainer import TrajectoryConsumer

KILLED = {"rollouts": "", "push": "pushes"}
"""What the trainer's line says, after its step, at which it is killed: its first, at half of the groups, or the one inside the pause."""
BUILDERS = ("prefix_merging", "per_request")
TURNS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""For engine and trainer, which take turns on the cores: threads that wait let the others work."""
SETTINGS = environment() | TURNS
"""For programs in vLLM's environment."""


@dataclass(frozen=True)
class Run:
    """One run in its folder."""

    options: argparse.Namespace
    began: float

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:5.0f} s  {text}", flush=True)

    def whole(self) -> Result:
        """All of it. Raises InputError, ProgramError, NotReadyError, ServerError."""
        out, options = self.options.out, self.options
        work = Work(options.seed, options.builder, options.evaluator)
        self._refuse(work)
        marks = [("model", time.monotonic())]
        model = self._model()
        served = out / "served"
        shutil.copytree(model, served, dirs_exist_ok=True)
        marks.append(("start", time.monotonic()))
        with (
            serving(served, log=out / "vllm.log", settings=TURNS) as server,
            system.running(out / "polar", server) as polar,
        ):
            marks.append(("held-out before", time.monotonic()))
            before = asyncio.run(self._held_out(polar, work, "before"))
            if not before.tells:
                raise NotReadyError(f"too many sessions have no reward; see {polar.log}")
            marks.append(("training", time.monotonic()))
            trainer = self._trainer(model, server)
            used = self._train(trainer, polar)
            marks.append(("held-out after", time.monotonic()))
            after = asyncio.run(self._held_out(polar, work, "after"))
            marks.append(("end", time.monotonic()))
            last = self._last_difference(trainer, polar)
        state = checkpoint.newest(out / "checkpoints")
        assert state is not None, "the trainer has ended well"
        return Result(
            seed=options.seed,
            builder=options.builder,
            killed_at=options.kill_at,
            before=before,
            after=after,
            seconds={name: later - at for (name, at), (_, later) in pairwise(marks)},
            processor=used,
            steps=checkpoint.read(state).steps,
            last_difference=last,
        )

    def _refuse(self, work: Work) -> None:
        """Refuse impossible arguments before anything starts. Raises InputError, NotReadyError."""
        out, options = self.options.out, self.options
        if (out / "polar").exists():
            raise InputError(
                "--out", str(out), "there was a run in it: name another folder (--model takes the model that it made)"
            )
        if options.steps < 1:
            raise InputError("--steps", options.steps, "must be 1 or more updates")
        if options.kill_at is None and options.kill_in != "rollouts":
            raise InputError("--kill-in", options.kill_in, "goes with --kill-at")
        if options.kill_at is not None and not 1 <= options.kill_at <= options.steps:
            raise InputError("--kill-at", options.kill_at, f"must be one of the {options.steps} steps, from 1 on")
        work.step(1, options.prompts)
        work.held_out("before", options.held_out)
        if not PYTHON.exists():
            raise NotReadyError(f"no vLLM at {PYTHON}: make vllm")

    def _model(self) -> Path:
        """The beginner, as it was made before in this folder or was given, or is made now."""
        given: Path | None = self.options.model
        name = f"model-{self.options.seed}" + ("-quick" if self.options.quick else "")
        folder = given or self.options.out / name
        if given is None and not (folder / "model.safetensors").exists():
            self.say("makes the model")
            words = [str(folder), "--seed", str(self.options.seed), *(["--quick"] if self.options.quick else [])]
            follow(Program(PYTHON, "examples.tiny_model", tuple(words), SETTINGS), self.say)
        return folder

    def _trainer(self, model: Path, server: Server) -> Program:
        out, options = self.options.out, self.options
        words = ["--data", out / "polar", "--model", model, "--served", server.model_dir, "--engine", server.url]
        words += ["--checkpoints", out / "checkpoints", "--seed", options.seed, "--steps", options.steps]
        words += ["--prompts", options.prompts, "--builder", options.builder]
        words += ["--evaluator", options.evaluator]
        return Program(PYTHON, "examples.grpo_tiny.trainer", tuple(map(str, words)), SETTINGS)

    def _train(self, trainer: Program, polar: System) -> dict[str, float]:
        """Run the trainer to its end, killed once where that was asked for; the CPU seconds by part."""
        before = costs.seconds_by_part()
        if self.options.kill_at is not None:
            follow(
                trainer, self.say, polar.check, kill_at=f"step {self.options.kill_at}: {KILLED[self.options.kill_in]}"
            )
        follow(trainer, self.say, polar.check)
        return costs.since(before)

    def _last_difference(self, trainer: Program, polar: System) -> float | None:
        """Engine against trainer in the evaluation after the last update; None where they aren't one model, which is said."""
        try:
            follow(replace(trainer, arguments=(*trainer.arguments, "--check", "after")), self.say, polar.check)
        except ProgramError as error:
            self.say(f"the last reload isn't proven: {error}")
            return None
        found = json.loads((self.options.out / "checkpoints" / checkpoint.CHECKED).read_text())
        return float(found["largest"])

    async def _held_out(self, polar: System, work: Work, name: str) -> HeldOut:
        """The rewards of sessions on tasks that no training asks for. Raises NotReadyError."""
        requests = work.held_out(name, self.options.held_out)
        began = time.monotonic()
        async with (
            Client(polar.settings).table() as table,
            TrajectoryConsumer(settings=polar.settings, topic="eval", start="latest") as consumer,
        ):
            groups = await groups_of(polar.settings, requests, table, consumer, check=polar.check)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        found = HeldOut(
            rewards=[trajectory.reward for trajectory in trajectories],
            malformed=malformed(trajectories),
            seconds=time.monotonic() - began,
        )
        if unjudged(found.rewards) == len(found.rewards):
            raise NotReadyError(f"no session of the evaluation {name} has a reward; see {polar.log}")
        self.say(f"held out, {name}: {found}")
        return found


def arguments() -> argparse.Namespace:
    """What is said on the command line."""
    parser = argparse.ArgumentParser(prog="examples.grpo_tiny", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="everything of the run; a new folder")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--steps", type=int, default=45, metavar="N", help="updates (default 45)")
    parser.add_argument("--prompts", type=int, default=12, metavar="N", help="tasks a step, of 8 sessions (default 12)")
    parser.add_argument("--builder", choices=BUILDERS, default=BUILDERS[0])
    parser.add_argument(
        "--evaluator",
        default=EVALUATOR,
        metavar="MODULE:CLASS",
        help=f"what judges, by the config of the default, {EVALUATOR}",
    )
    parser.add_argument("--kill-at", type=int, metavar="N", help="kill the trainer in mid-step N, and start it again")
    parser.add_argument(
        "--kill-in", choices=KILLED, default="rollouts", help="what it is doing then (default rollouts)"
    )
    parser.add_argument(
        "--held-out", type=int, default=256, metavar="N", help="sessions of an evaluation (default 256)"
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="begin with this one instead of making one")
    parser.add_argument("--quick", action="store_true", help="make the model that is for tests")
    return parser.parse_args()


def main() -> int:
    """0; 1 where a part of it failed, 2 for bad usage, 3 where something needed isn't there. SIGTERM ends all of it."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    run = Run(options, time.monotonic())
    try:
        result = run.whole()
    except (ProgramError, InputError, NotReadyError, ServerError) as error:
        print(f"grpo_tiny: {error}", file=sys.stderr)
        return 1 if isinstance(error, ProgramError) else 2 if isinstance(error, InputError) else 3
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    (options.out / "result.json").write_text(json.dumps(asdict(result)))
    (options.out / "report.md").write_text(report.text([result]))
    run.say(f"{options.out / 'report.md'}:")
    print(report.text([result]))
    return 0 if result.last_difference is not None and result.after.tells else 1


if __name__ == "__main__":
    sys.exit(main())
