"""Scheduling over simulated time: run slots stay busy, urgent sessions go first, and no user or coordinator starves."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from consumers.coordinator.scheduling.demand import PartitionDemand
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.queue import QueueKey, SessionQueue
from consumers.coordinator.scheduling.scheduler import Scheduler
from tests.consumers.coordinator.simulation import Simulation
from topics.fleet import FleetState, FleetView
from topics.types.session import Stage, task_id_of
from topics.workers import Backlog, Heartbeat, StageSlots

SLOTS = {Stage.INIT: 4, Stage.RUN: 8, Stage.EVALUATE: 4}
"""Of each of the 4 workers: the defaults."""
RUN_SLOTS, INIT_SLOTS = 32, 16


def lengths(mean_s: float, seed: int = 1) -> Callable[[Stage], int]:
    """Run times in ms, log-normal with sigma 1.2; other stages take 0.2 s."""
    drawn = random.Random(seed)
    sigma = 1.2
    mu = math.log(mean_s * 1000) - sigma**2 / 2
    return lambda stage: max(1, round(drawn.lognormvariate(mu, sigma))) if stage is Stage.RUN else 200


def backlogged(coordinators: int, mean_s: float = 5.0, tasks: int = 40) -> Simulation:
    simulation = Simulation(lengths(mean_s), coordinators=coordinators, slots=SLOTS)
    for n in range(tasks):
        simulation.submit(f"t{n}", 8)
    return simulation


@pytest.mark.parametrize("coordinators", [1, 2])
def test_run_slots_are_busy_and_sandboxes_few_while_there_is_a_backlog(coordinators: int) -> None:
    simulation = backlogged(coordinators)
    simulation.run(5_000)
    before = simulation.busy_ms()
    staged: Counter[int] = Counter()
    ahead: Counter[int] = Counter()

    def watch() -> None:
        staged[simulation.staged()] += 1
        ahead[simulation.queued_tickets(Stage.RUN)] += 1

    simulation.run(25_000, watch)
    assert (simulation.busy_ms() - before) / (RUN_SLOTS * 20_000) >= 0.95
    assert max(staged) <= RUN_SLOTS + coordinators
    # No ticket may lie before a later, more urgent one, except the one that each coordinator may have in excess.
    assert max(ahead) <= (0 if coordinators == 1 else coordinators)
    assert simulation.sessions_waiting(), "the backlog lasted"


@pytest.mark.parametrize("coordinators", [1, 2])
def test_an_urgent_task_behind_ten_thousand_sessions_starts_within_2_s_of_a_free_slot(coordinators: int) -> None:
    """READY is full of other sessions when it comes; it passes them by the init slots."""
    simulation = backlogged(coordinators, mean_s=15.0, tasks=1250)
    simulation.run(10_000)
    assert simulation.staged() >= RUN_SLOTS - coordinators
    simulation.submit("urgent", 4, priority=100)
    staged: Counter[int] = Counter()
    simulation.run(30_000, lambda: staged.update([simulation.staged()]))
    freed = next(at for at in simulation.freed if at > 10_000)
    starts = sorted(at for session, at in simulation.started.items() if task_id_of(session) == "urgent")
    assert starts[0] <= freed + 2_000
    overtaken = [s for s, at in simulation.started.items() if 12_000 < at < starts[-1] and task_id_of(s) != "urgent"]
    assert len(overtaken) <= coordinators, "no less urgent session goes before its siblings"
    assert max(staged) <= RUN_SLOTS + INIT_SLOTS


def test_users_share_a_pool_evenly_however_much_each_has_submitted() -> None:
    simulation = Simulation(lengths(2.0), slots=SLOTS)
    for n in range(40):
        simulation.submit(f"a{n}", 16, user="ann")
    simulation.run(3_000)
    for n in range(10):
        simulation.submit(f"b{n}", 16, user="bob")
    simulation.run(12_000)
    users = Counter(session[0] for session, at in simulation.started.items() if at > 7_000)
    assert users.total() > 40
    assert abs(users["a"] - users["b"]) <= 0.25 * users.total()


def test_no_user_always_loses_if_slots_become_free_one_at_a_time() -> None:
    """Two stages alternate; no user has an active session in any partition."""
    free_slots = FreeSlots()
    stages, users, partitions = (Stage.EVALUATE, Stage.RUN), ("ann", "bob"), (0, 1, 2)
    slots = [StageSlots(stage, "default", 1, 1, [0]) for stage in stages]
    free_slots.on_heartbeat(Heartbeat("w", "worker", "h", 1, slots))
    scheduler = Scheduler("c", free_slots, FleetView())
    for partition in partitions:
        queue = SessionQueue()
        scheduler.demands[partition] = demand = PartitionDemand(partition, queue, free_slots, lambda: None)
        demand.is_open = True
        for stage in stages:
            for user in users:
                for index in range(100):
                    queue.add(QueueKey(stage, "default", 0, user), user, index)
    served: Counter[tuple[Stage, str, int]] = Counter()
    for _ in range(12):
        scheduler.assign(0)
        for partition, demand in scheduler.demands.items():
            while (slot := demand.next_slot) is not None:
                served[slot.stage, slot.user, partition] += 1
                demand.slot_decided()
    assert served == {(stage, user, partition): 2 for stage in stages for user in users for partition in partitions}


def test_a_small_task_does_not_wait_for_a_large_one_before_it() -> None:
    simulation = Simulation(lengths(1.0), partitions=1, slots=SLOTS)
    simulation.submit("large", 1024)
    simulation.submit("small", 8)
    simulation.run(6_000)
    large = sorted(at for session, at in simulation.started.items() if task_id_of(session) == "large")
    small = sorted(at for session, at in simulation.started.items() if task_id_of(session) == "small")
    assert len(small) == 8
    assert sum(at < small[-1] for at in large) <= 2 * RUN_SLOTS + INIT_SLOTS
    assert len(large) < 1024


def test_a_coordinator_that_comes_late_to_a_full_pool_gets_its_share() -> None:
    """Its sessions have no slots yet: the other must leave slots to it, though each of its own finished sessions frees one for itself."""
    simulation = Simulation(lengths(2.0), coordinators=2, partitions=2, slots=SLOTS)
    first, second = ([n for n in range(400) if simulation.partition_of(f"t{n}").table.partition == p] for p in (0, 1))
    for n in first[:30]:
        simulation.submit(f"t{n}", 8)
    simulation.run(3_000)
    for n in second[:30]:
        simulation.submit(f"t{n}", 8)
    simulation.run(12_000)
    assert RUN_SLOTS / 3 <= simulation.running(partition=1) <= 2 * RUN_SLOTS / 3


def test_claims_of_leaving_workers_keep_no_coordinator_from_the_slots_of_new_ones() -> None:
    """A rolling upgrade, an hour's sessions still running: each coordinator has half of them and requests more than there is."""
    free_slots, queue = FreeSlots(), SessionQueue()
    scheduler = Scheduler("a", free_slots, FleetView())
    scheduler.demands[0] = demand = PartitionDemand(0, queue, free_slots, lambda: None)
    demand.is_open = True
    key = QueueKey(Stage.RUN, "default", 0, "")
    for n in range(4):
        queue.activate(key, f"old.{n}")
        for index in range(8):
            queue.add(key, f"new{n}", index)
    claims = [f"r-{n}" for n in range(8)]
    scheduler.on_heartbeat(
        Heartbeat("o", "worker", "h", 1, [StageSlots(Stage.RUN, "default", 8, 0, [0], claims)], leaving=True)
    )
    scheduler.on_heartbeat(Heartbeat("n", "worker", "h", 2, [StageSlots(Stage.RUN, "default", 8, 8, [0])]))
    for name in ("a", "b"):
        backlog = [Backlog(Stage.RUN, "default", 0, sessions=32, held=4)]
        scheduler.on_heartbeat(Heartbeat(name, "coordinator", "h", 3, backlogs=backlog))
    scheduler.assign(0)
    assert demand.active(Stage.RUN, "default").total() == 4 + 4


def test_no_slot_is_assigned_while_the_fleet_drains() -> None:
    simulation = backlogged(1)
    simulation.run(5_000)
    simulation.fleet.take(FleetState(1, draining=True))
    simulation.run(5_300)
    started = len(simulation.started)
    simulation.run(15_000)
    assert len(simulation.started) == started, "released tickets were claimed long ago"
    simulation.fleet.take(FleetState(2))
    simulation.run(17_000)
    assert len(simulation.started) > started
