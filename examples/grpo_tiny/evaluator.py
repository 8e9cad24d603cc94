"""The evaluator: the folder against what it was to become, and whether the agent tested what it had done.

Config: `goal`, text by file name. 1.0: every file is as it should be, and the test passed after the last edit; 0.5: not tested since; else
0.0, also where the agent stopped at something malformed. No reward where the agent ended otherwise: an answer that didn't come, a fault, a
time-out say nothing about the model.
"""

from __future__ import annotations

from collections.abc import Mapping

from examples.grpo_tiny.agent import MALFORMED, VERIFIED
from polar import Case, InputError, Runtime, Verdict

LIMIT = 4096
"""Bytes of a file."""


class Repaired:
    """Named `examples.grpo_tiny.evaluator:Repaired` in a task; see `polar.Evaluator`."""

    def __init__(self, config: Mapping[str, object]) -> None:
        goal = config.get("goal")
        if not isinstance(goal, dict) or not goal or not all(isinstance(text, str) for text in goal.values()):
            raise InputError("evaluator.config.goal", goal, "must map file names to their texts")
        self._goal: dict[str, str] = goal

    async def evaluate(self, case: Case) -> Verdict:
        if case.exit_code != 0:
            return Verdict(0.0 if case.exit_code == MALFORMED else None)
        for name, text in self._goal.items():
            if await _read(case.runtime, name) != text.encode():
                return Verdict(0.0)
        return Verdict(0.5 if await _read(case.runtime, VERIFIED) is None else 1.0)


async def _read(runtime: Runtime, name: str) -> bytes | None:
    try:
        return await runtime.read_file(name, LIMIT)
    except OSError:
        return None
