"""Chooses the answer to a conversation: tokens and logprobs, from a script or, if none fits, seeded filler.

Tokens and logprobs depend only on the scripts, the seed, the conversation, its session and the call's number. Logprobs are invented:
float32 values of at most 0, determined by seed, call and position.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import structlog

from polar.scripted import scripts
from polar.scripted.conversation import Turn
from polar.scripted.faults import Fault
from polar.scripted.scripts import Cue, Script
from polar.scripted.template import ChatTemplate
from polar.scripted.tokenizer import Tokenizer

FILLER_TOKENS: Final = (8, 24)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Utterance:
    """A complete answer, before token limits and stop strings."""

    token_ids: Sequence[int]
    """int32, including the end of turn."""
    logprobs: Sequence[float]
    """float32 values, as long as `token_ids`."""
    script: str | None
    """`script/variant/turn`; None for filler."""
    delay_s: float
    fault: Fault | None


class Sampler:
    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, known: Sequence[Script], seed: int) -> None:
        self._template = template
        self._scripts = known
        self._seed = seed
        self._fault_counts: dict[tuple[str, str | None], int] = {}
        self._openers = [word for word in tokenizer.words if word[0].isupper()]
        self._words = [word for word in tokenizer.words if word[0] == " "]

    def answer(
        self,
        call: int,
        turns: Sequence[Turn],
        tool_names: frozenset[str],
        session: str | None,
        demanded: Turn | None = None,
    ) -> Utterance:
        """The answer to call number `call`, whose prompt is `turns`; `session` distinguishes samples.

        `demanded`: the answer that the request's constraints allow, used if no script fits.
        """
        cue = scripts.choose(self._scripts, turns, session, self._seed)
        if cue is not None and (unknown := {made.name for made in cue.turn.calls} - tool_names):
            log.warning("tools not offered", action="script_skipped", script=cue.name, tools=sorted(unknown))
            cue = None
        turn = cue.turn.as_turn() if cue else demanded or Turn("assistant", self._filler(call))
        token_ids = self._template.encode_answer(turn)
        return Utterance(
            token_ids=token_ids,
            logprobs=self._logprobs(call, len(token_ids)),
            script=cue.name if cue else None,
            delay_s=cue.turn.delay_s if cue else 0.0,
            fault=self._fault(cue, session) if cue else None,
        )

    def _fault(self, cue: Cue, session: str | None) -> Fault | None:
        """The turn's fault, for its first `times` calls by the session."""
        fault = cue.turn.fault
        if fault is None:
            return None
        had = self._fault_counts.get((cue.name, session), 0)
        self._fault_counts[cue.name, session] = had + 1
        return fault if had < fault.times else None

    def _filler(self, call: int) -> str:
        """A sentence of 8 to 24 tokens: words of one token each, and a full stop."""
        rng = random.Random(f"{self._seed}:{call}:filler")
        words = rng.randint(*FILLER_TOKENS) - 1
        return "".join([rng.choice(self._openers), *rng.choices(self._words, k=words - 1), "."])

    def _logprobs(self, call: int, count: int) -> list[float]:
        rng = np.random.default_rng([self._seed, call])
        drawn: list[float] = (-rng.exponential(0.3, count)).astype(np.float32).tolist()
        return drawn
