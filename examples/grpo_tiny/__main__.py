"""A tiny model learns by GRPO, all of it on this machine: python -m examples.grpo_tiny --seed 1 --out DIR

Makes the model (SFT), starts vLLM and Polar, evaluates on held-out tasks, trains, evaluates again, and writes DIR/result.json and
DIR/report.md. `--kill-at N` kills the trainer (SIGKILL) in mid-step N and starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from examples.grpo_tiny import checkpoint, costs, report, system
from examples.grpo_tiny.report import HeldOut, Result
from examples.grpo_tiny.requests import Work
from examples.grpo_tiny.rollouts import groups_of
from examples.vllm_cpu.serve import PYTHON, Server, ServerError, environment, serving
from polar import client
from polar.settings import Settings
from polar.trainer import TrajectoryConsumer
from polar.types.errors import InputError, NotReady
from polar.types.session import Status

BUILDERS = ("prefix_merging", "per_request")
TURNS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""For engine and trainer, which take turns on the cores: threads that wait let the others work."""


class ProgramError(RuntimeError):
    """A program of the run ended badly."""


@dataclass(frozen=True)
class Run:
    """One run in its folder."""

    options: argparse.Namespace
    began: float

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:5.0f} s  {text}", flush=True)

    def whole(self) -> Result:
        """All of it. Raises InputError, ProgramError, NotReady, ServerError."""
        out, options = self.options.out, self.options
        if (out / "polar").exists():
            raise InputError(
                "--out", str(out), "there was a run in it: name another folder (--model takes the model that it made)"
            )
        marks = [("model", time.monotonic())]
        model = self._model()
        served = out / "served"
        shutil.copytree(model, served, dirs_exist_ok=True)
        marks.append(("start", time.monotonic()))
        with (
            serving(served, log=out / "vllm.log", settings=TURNS) as server,
            system.running(out / "polar", server.url) as settings,
        ):
            work = Work(options.seed, options.builder)
            marks.append(("held-out before", time.monotonic()))
            before = asyncio.run(self._held_out(settings, work, "before"))
            marks.append(("training", time.monotonic()))
            used = self._train(model, server)
            marks.append(("held-out after", time.monotonic()))
            after = asyncio.run(self._held_out(settings, work, "after"))
            marks.append(("end", time.monotonic()))
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
        )

    def _model(self) -> Path:
        """The beginner, as it was made before in this folder or was given, or is made now."""
        given: Path | None = self.options.model
        folder = given or self.options.out / "model"
        if given is None and not (folder / "model.safetensors").exists():
            self.say("makes the model")
            words = ["--quick"] if self.options.quick else []
            self._follow("-m", "examples.tiny_model", str(folder), "--seed", str(self.options.seed), *words)
        return folder

    def _train(self, model: Path, server: Server) -> dict[str, float]:
        """Run the trainer to its end, killed once where that was asked for; the CPU seconds by part."""
        out, options = self.options.out, self.options
        before = costs.seconds_by_part()
        words = [
            "-m",
            "examples.grpo_tiny.trainer",
            "--data",
            out / "polar",
            "--model",
            model,
            "--served",
            server.model_dir,
        ]
        words += ["--engine", server.url, "--checkpoints", out / "checkpoints", "--seed", options.seed]
        words += ["--steps", options.steps, "--prompts", options.prompts, "--builder", options.builder]
        if options.kill_at is not None:
            self._follow(*map(str, words), kill_at=f"step {options.kill_at}: ")
        self._follow(*map(str, words))
        return costs.since(before)

    def _follow(self, *words: str, kill_at: str | None = None) -> None:
        """Run a program in vLLM's environment and say what it says; SIGKILL at its first line that begins with `kill_at`.

        Raises ProgramError.
        """
        command = [str(PYTHON), *words]
        with subprocess.Popen(command, env=environment() | TURNS, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    self.say(line.rstrip())
                    if kill_at is not None and line.startswith(kill_at):
                        self.say("kills the trainer")
                        process.kill()
                        return
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise ProgramError(f"{words[1]} ended with {process.returncode}")

    async def _held_out(self, settings: Settings, work: Work, name: str) -> HeldOut:
        """The rewards of sessions on tasks that no training sees."""
        requests = work.held_out(name, self.options.held_out)
        began = time.monotonic()
        async with (
            client.SessionTable(settings) as table,
            TrajectoryConsumer(settings=settings, topic="eval", start="latest") as consumer,
        ):
            groups = await groups_of(settings, requests, table, consumer, lambda _: None)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        found = HeldOut(
            rewards=[trajectory.reward for trajectory in trajectories],
            malformed=sum(trajectory.status is Status.FAILED for trajectory in trajectories),
            seconds=time.monotonic() - began,
        )
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
    parser.add_argument("--kill-at", type=int, metavar="N", help="kill the trainer in mid-step N, and start it again")
    parser.add_argument(
        "--held-out", type=int, default=256, metavar="N", help="sessions of an evaluation (default 256)"
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="begin with this one instead of making one")
    parser.add_argument("--quick", action="store_true", help="make the model that is for tests")
    return parser.parse_args()


def main() -> int:
    """0; 1 where a part of it failed, 2 for bad usage, 3 where something needed isn't there."""
    options = arguments()
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    run = Run(options, time.monotonic())
    try:
        result = run.whole()
    except (ProgramError, InputError, NotReady, ServerError) as error:
        print(f"grpo_tiny: {error}", file=sys.stderr)
        return 1 if isinstance(error, ProgramError) else 2 if isinstance(error, InputError) else 3
    (options.out / "result.json").write_text(json.dumps(asdict(result)))
    (options.out / "report.md").write_text(report.text([result]))
    run.say(f"{options.out / 'report.md'}:")
    print(report.text([result]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
