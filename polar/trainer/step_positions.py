"""`StepPositions`: a run's positions in the log, a small file per step, for trainers whose checkpoints have no place for them.

Invariant: a file is whole or absent, and has the position after the training batches of its step.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from polar.trainer.training_run import TrainingRun
from topics.environment import private_files
from topics.environment.settings import Settings
from topics.types.errors import InputError


class Run(Protocol):
    """A `TrainingRun`, as far as its position goes."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class StepPositions:
    """The files `STEP.json` of a folder beside the trainer's checkpoints, which must outlive the process as they do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def connected(self, settings: Settings, run: str, last_step: int) -> TrainingRun:
        """The run's connection, which begins as `load` says and lasts until the process ends: these trainers have no call for their end.

        Raises InputError, NotReadyError.
        """
        made = TrainingRun(settings, run).__enter__()
        try:
            self.load(made, last_step)
        except BaseException:
            made.__exit__()
            raise
        atexit.register(made.__exit__)
        return made

    def load(self, run: Run, last_step: int) -> None:
        """Resume `run` after `last_step`, or after the last step before it that has a file.

        Raises InputError as `load_state_dict` does, and for a file that isn't one of `keep`.
        """
        by_step = {int(file.stem): file for file in self._folder.glob("*.json") if file.stem.isdecimal()}
        if not (steps := [step for step in by_step if step <= last_step]):
            return
        file = by_step[max(steps)]
        try:
            state = json.loads(file.read_bytes())
        except ValueError as error:
            reason = f"not a position: {error}; without this file the run resumes after an earlier step"
            raise InputError(str(file), None, reason) from None
        run.load_state_dict(state)

    def keep(self, run: Run, step: int) -> None:
        """Write the position of `run` as the one after this step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        private_files.replace(self._folder / f"{step}.json", json.dumps(run.state_dict()), is_durable=True)
