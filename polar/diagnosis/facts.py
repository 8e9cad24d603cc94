"""`Facts`: all that is known of one session, or of a task without sessions, when its diagnosis is made.

Plain data: `reader` fills it, and the conditions of `waiting`, `ended` and `calls` look at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from analytics.health import Flag
from analytics.live.fold import Snapshot
from topics.dead_letters import Letter
from topics.types.completion import CallError, CallOutcome, Completion
from topics.types.errors import SessionError
from topics.types.session import CLAIMED_STAGES, WAITING_STAGES, Phase, SessionState, Stage, TaskState


class Slots(NamedTuple):
    """Slots of one stage in one pool, over all live workers."""

    total: int
    free: int


@dataclass(frozen=True)
class System:
    """The live processes, as their heartbeats and one proxy report them."""

    kafka: str | None = None
    """Why Kafka can't be read; then nothing else is known. None: it was read."""
    processes: Mapping[str, int] = field(default_factory=dict)
    """Live processes by role."""
    slots: Mapping[tuple[Stage, str], Slots] = field(default_factory=dict)
    """By stage and pool; a stage without live workers is missing."""
    is_paused: bool = False
    is_draining: bool = False
    obstacles: Sequence[str] = ()
    """Sentences of processes that wait for a person, each with its host."""
    policy_version: int | None = None
    """The policy version that was published last for all engines."""
    proxy: str | None = None
    """Why the proxy behind the control URL doesn't serve calls. None: it does, or there is no control URL."""
    engines_down: Sequence[str] = ()
    """Engines of which that proxy finds no server up."""

    @classmethod
    def of(cls, found: Snapshot, proxy: str | None, engines_down: Sequence[str]) -> Self:
        """The figures of a snapshot, and a proxy's."""
        return cls(
            processes=found.processes,
            slots={
                (load.stage, load.pool): Slots(load.slots, load.slots - load.busy)
                for load in found.stages
                if load.workers
            },
            is_paused=found.paused,
            is_draining=found.draining,
            obstacles=found.obstacles,
            policy_version=found.policy_version,
            proxy=proxy,
            engines_down=engines_down,
        )

    def slots_of(self, stage: Stage, pool: str) -> Slots:
        """Slots of a stage in a pool; no slots if no live worker serves it."""
        return self.slots.get((stage, pool), Slots(0, 0))


@dataclass(frozen=True)
class Calls:
    """A session's model calls so far, those of its current attempt."""

    answered: int = 0
    error: CallError | None = None
    """Error of the last call if that failed; None: it was answered, the harness hung up, or there is no call."""
    policy_version: int | None = None
    """The newest version that sampled an answer; None: unknown."""
    raw: int = 0
    """Answers whose logprobs are raw although temperature or truncation changed the sampled distribution."""
    refused: int = 0
    """Requests that the proxy refused before they became calls."""
    refusal: str = ""
    """The last of these requests: method, path and reason."""

    @classmethod
    def of(cls, calls: Iterable[Completion], refused: int, refusal: str) -> Self:
        """The figures of calls in log order."""
        found = list(calls)
        answered = [call for call in found if call.outcome is CallOutcome.ANSWERED]
        versions = [call.policy_version for call in answered if call.policy_version is not None]
        return cls(
            answered=len(answered),
            error=found[-1].error if found and found[-1].outcome is CallOutcome.FAILED else None,
            policy_version=max(versions, default=None),
            raw=sum(call.logprobs_mode == "raw" and _is_changed(call) for call in answered),
            refused=refused,
            refusal=refusal,
        )


def _is_changed(call: Completion) -> bool:
    """Whether the call was sampled from another distribution than the model's own."""
    sampling = call.sampling
    return sampling.truncated or sampling.penalised or sampling.temperature not in (None, 1.0)


@dataclass(frozen=True)
class Facts:
    """Facts on a session, or on a task that has none (`session` is None)."""

    name: str
    """Id of the session or task."""
    system: System = System()
    task: TaskState | None = None
    """None: no coordinator shows the task."""
    session: SessionState | None = None
    letters: Sequence[Letter] = ()
    """Dead letters about it that weren't sent again, oldest first."""
    calls: Calls = Calls()
    attempt_error: SessionError | None = None
    """The error that ended the attempt before; None: unknown, or this is the first."""
    flags: Sequence[Flag] | None = None
    """Health flags of its trajectory; None: neither its calls nor its trajectory were read."""

    @property
    def is_known(self) -> bool:
        """Whether a coordinator shows the task with its body."""
        return self.task is not None and self.task.body_hash is not None

    @property
    def is_opened(self) -> bool:
        """Whether it was opened for an agent that no worker starts."""
        return self.task is not None and self.task.opened_at is not None

    @property
    def phase(self) -> Phase | None:
        return None if self.session is None else self.session.phase

    @property
    def is_open(self) -> bool:
        """Whether it is a session that hasn't ended."""
        return self.phase not in (None, Phase.ENDED)

    @property
    def waits_for(self) -> Stage | None:
        """The stage whose slot it waits for."""
        return None if self.phase is None else WAITING_STAGES.get(self.phase)

    @property
    def pool(self) -> str:
        return self.task.plan.pool if self.task is not None and self.task.plan is not None else ""

    @property
    def slots(self) -> Slots:
        """Slots of the stage that it waits for, in its pool."""
        return Slots(0, 0) if self.waits_for is None else self.system.slots_of(self.waits_for, self.pool)

    @property
    def missing_stages(self) -> list[Stage]:
        """Stages without a live worker in its pool that it needs next. A sandbox is prepared only for a run slot, so a queued session needs
        both."""
        needed = {Phase.QUEUED: [Stage.INIT, Stage.RUN], Phase.READY: [Stage.RUN], Phase.RAN: [Stage.EVALUATE]}
        stages = [] if self.phase is None else needed.get(self.phase, [])
        return [stage for stage in stages if not self.system.slots_of(stage, self.pool).total]

    @property
    def error(self) -> SessionError | None:
        """Why it ended as it did; an error of the evaluation if the run has none."""
        return None if self.session is None else self.session.error or self.session.evaluation_error

    @property
    def code(self) -> str:
        """`<kind>/<code>` of the error; empty without one."""
        return "" if self.error is None else f"{self.error.kind.value}/{self.error.code}"

    @property
    def behind(self) -> int:
        """Published versions since the one that sampled its newest answer; 0 if either is unknown."""
        if self.system.policy_version is None or self.calls.policy_version is None:
            return 0
        return self.system.policy_version - self.calls.policy_version

    def words(self) -> dict[str, object]:
        """Values for the placeholders of sentences."""
        session, plan, error = self.session, None if self.task is None else self.task.plan, self.error
        stage = None if self.phase is None else WAITING_STAGES.get(self.phase) or CLAIMED_STAGES.get(self.phase)
        letter = self.letters[-1] if self.letters else None
        call = self.calls.error
        earlier = self.attempt_error
        return {
            "name": self.name,
            "task": self.name if session is None else session.task_id,
            "stage": stage.value if stage else "build",
            "stages": " ".join(stage.value for stage in self.missing_stages),
            "pool": self.pool,
            "slots": self.slots.total,
            "run_slots": self.system.slots_of(Stage.RUN, self.pool).total,
            "worker": (session and session.worker_id) or "a worker",
            "attempt": session.attempt if session else 1,
            "earlier": f"{earlier.stage} {earlier.kind.value}/{earlier.code}: {_sentence(earlier.message)}"
            if earlier
            else "",
            "attempts": plan.max_attempts if plan else 0,
            "samples": self.task.num_samples if self.task else 0,
            "harness": plan.harness if plan else "",
            "code": self.code,
            "at": error.stage if error else "",
            "error": _sentence(error.message) if error else "",
            "reward": _reward(session),
            "why_reward": _sentence((session and session.reward_reason) or "its evaluator gave none"),
            "answered": self.calls.answered,
            "call_error": f"{call.code}: {_sentence(call.message)}" if call else "",
            "engines": ", ".join(self.system.engines_down),
            "refused": self.calls.refused,
            "refusal": self.calls.refusal,
            "raw": self.calls.raw,
            "behind": self.behind,
            "version": self.calls.policy_version,
            "proxy": self.system.proxy,
            "kafka": self.system.kafka,
            "obstacles": "; ".join(self.system.obstacles),
            "letter": letter.id if letter else "",
            "letter_reason": _reason(letter) if letter else "",
            "letter_process": letter.process if letter else "",
        }


def _reason(letter: Letter) -> str:
    return f"{letter.field}: {letter.reason}" if letter.field else letter.reason


def _reward(session: SessionState | None) -> str:
    """The reward, with the evaluator's reason for it."""
    if session is None or session.reward is None:
        return "no reward"
    reason = f" ({_sentence(session.reward_reason)})" if session.reward_reason else ""
    return f"reward {session.reward:g}{reason}"


def _sentence(message: str) -> str:
    """A message without its end: the sentence that it stands in has its own."""
    return message.rstrip(". \n")
