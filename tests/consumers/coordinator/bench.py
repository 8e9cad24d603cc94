"""A table to give inputs to, and all that `decide` gave out: what every test of the pure coordinator stands on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from consumers.coordinator.commands import (
    Command,
    DeadlinePassed,
    Decision,
    Input,
    SlotAssigned,
)
from consumers.coordinator.decide import decide
from consumers.coordinator.state import Table
from topics.completions import Build, CloseGroup, Open
from topics.events import (
    Claimed,
    InitFinished,
    RunFinished,
    TaskSubmitted,
)
from topics.types.session import Plan, SessionState, Stage, Status

PLAN = Plan("default", 0, 3, 600, 3600, 600, "shell", "prefix_merging", b"{}", None, "train", b"{}", run="night")


def wants(table: Table) -> dict[tuple[Stage, str], int]:
    """How many sessions want a slot, by stage and pool."""
    return {key: count for key in table.queue.stage_pools() if (count := table.queue.waiting(*key).total())}


def submitted(samples: int = 1, body: str = "a", task_id: str = "t") -> TaskSubmitted:
    return TaskSubmitted("f", task_id, samples, body, PLAN, body=body.encode())


@dataclass
class Bench:
    """A table, and all that it gave out; plays the builder, which emits each session once."""

    table: Table = field(default_factory=lambda: Table(0))
    now: int = 0
    commands: list[Command] = field(default_factory=list)
    opened: dict[str, Open] = field(default_factory=dict)
    builds: dict[str, Build] = field(default_factory=dict)
    groups: list[CloseGroup] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    grants: dict[tuple[str, int, Stage], set[str]] = field(default_factory=dict)

    def give(self, *inputs: Input) -> Decision:
        decision = Decision()
        for each in inputs:
            decision = decide(self.table, each, self.now)
            self.table.apply(decision)
            self.commands.extend(decision.commands)
            for record in decision.records:
                self._written(record)
            if decision.skipped:
                self.skipped[decision.skipped] += 1
        return decision

    def _written(self, record: Open | Build | CloseGroup) -> None:
        match record:
            case Open():
                assert record.session_id not in self.builds, "nothing is opened after Build"
                self.opened[record.session_id] = record
            case Build():
                assert self.opened[record.session_id].claim_id == record.claim_id, (
                    "the calls of the last Open are built"
                )
                first = self.builds.setdefault(record.session_id, record)
                assert first == record, "Build says the same each time"
            case CloseGroup():
                self.groups.append(record)

    def pass_time(self, ms: int) -> None:
        """Advance the clock, and decide on the deadlines that have passed."""
        self.now += ms
        self.give(*(DeadlinePassed(session_id) for session_id in self.table.pop_due(self.now)))

    def session(self, session_id: str = "t.0") -> SessionState:
        found = self.table.session(session_id)
        assert found is not None
        return found

    def assign(self, stage: Stage) -> Decision:
        return self.give(SlotAssigned(stage, "default", "w", 0))

    def claim(self, stage: Stage, claim_id: str, session_id: str = "t.0", attempt: int = 1) -> Decision:
        return self.give(Claimed("f", session_id, attempt, stage, claim_id, "w"))

    def init(self, session_id: str = "t.0", attempt: int = 1) -> None:
        self.assign(Stage.INIT)
        self.claim(Stage.INIT, f"i{attempt}", session_id, attempt)
        self.give(InitFinished("f", session_id, attempt, f"i{attempt}", runtime={"dir": "x"}))

    def run(self, session_id: str = "t.0", attempt: int = 1) -> None:
        self.init(session_id, attempt)
        self.assign(Stage.RUN)
        self.claim(Stage.RUN, f"r{attempt}", session_id, attempt)

    def evaluate(self) -> None:
        self.run()
        self.give(RunFinished("f", "t.0", 1, "r1", Status.COMPLETED, 0))
        self.assign(Stage.EVALUATE)
        self.claim(Stage.EVALUATE, "e1")
