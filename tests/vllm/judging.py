"""An evaluator for short runs: it rewards every other session of a group, whatever a model that hardly learned anything has done in it."""

from __future__ import annotations

from collections.abc import Mapping

from consumers.evaluators.base import Case, Verdict
from examples.grpo_tiny.agent import MALFORMED


class EveryOther:
    """Named `tests.vllm.judging:EveryOther` in a task; takes any config."""

    def __init__(self, config: Mapping[str, object]) -> None:
        del config

    async def evaluate(self, case: Case) -> Verdict:
        """1 for odd samples, 0 for even ones; none where the agent ended otherwise than the model made it, as in `Repaired`."""
        if case.exit_code not in (0, MALFORMED):
            return Verdict(None)
        return Verdict(float(int(case.session_id.rpartition(".")[2]) % 2))
