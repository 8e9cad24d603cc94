"""Which deliveries are attempted, and from where a successor must read, for any order of records, attempts, rebalances."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumers.webhooks.pending import IN_ALL, PER_FAILING_HOST, PER_HOST, Delivery, PendingDeliveries, host_of
from topics.contract.codec import encode
from topics.types.session import Status
from topics.webhooks import CODEC, Owed, Record, Settled


def owed(task_id: str, url: str = "http://a.example/x", due_ms: int = 0, tries: int = 0) -> Owed:
    return Owed(task_id, url, 0, [1.0], [Status.COMPLETED], tries=tries, due_ms=due_ms)


def read(pending: PendingDeliveries, *records: Record, number: int = 0, offset: int = 0) -> None:
    for place, record in enumerate(records, start=offset):
        pending.on_read(number, place, record, encode(record))


def pending_of(*records: Record) -> PendingDeliveries:
    """One partition, read to its end."""
    pending = PendingDeliveries()
    pending.assign([0])
    read(pending, *records)
    pending.set_ready(0)
    return pending


def test_a_host_that_hangs_delays_no_other() -> None:
    many = [owed(f"t{n}", "https://dead.example/x") for n in range(1000)]
    pending = pending_of(*many, owed("other", "https://well.example/x"))
    started = pending.start_due(0)
    dead = [delivery for delivery in started if delivery.host == "dead.example"]
    assert [delivery.task_id for delivery in started if delivery not in dead] == ["other"]
    assert len(dead) == PER_HOST
    for place, delivery in enumerate(dead, start=2000):
        later = owed(delivery.task_id, "https://dead.example/x", due_ms=5000, tries=1)
        pending.on_written(0, place, later, encode(later))
        pending.finish(delivery, is_failing=True)
    assert len(pending.start_due(0)) == PER_FAILING_HOST
    assert pending.next_due_ms() is None


def test_deliveries_in_progress_are_limited_in_all() -> None:
    pending = pending_of(*(owed(f"t{n}", f"http://h{n % 40}.example/") for n in range(1000)))
    assert len(pending.start_due(0)) == IN_ALL
    assert pending.next_due_ms() is None


def test_a_partition_read_again_after_a_rebalance_repeats_no_settled_delivery() -> None:
    log: list[Record] = [owed("t1"), owed("t2"), Settled("t2", "delivered", 1)]
    pending = pending_of(*log)
    (delivery,) = pending.start_due(0)
    read(pending, *log[:2])  # from the resume offset again
    assert pending.unready() == [0]
    read(pending, *log[2:], offset=2)
    pending.set_ready(0)
    assert pending.start_due(0) == []  # t1 is in progress
    settled = Settled("t1", "delivered", 1)
    pending.on_written(0, 3, settled, encode(settled))
    pending.finish(delivery, is_failing=False)
    assert len(pending) == 0
    assert pending.start_due(0) == []
    assert pending.resume_offsets() == {0: 3}


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Trainer.Example:8443/a?b=c", "trainer.example:8443"),
        ("http://user:word@x.example", "x.example"),
        ("http://[::1", ""),
        ("nonsense", ""),
    ],
)
def test_a_host_includes_the_port_of_its_url(url: str, host: str) -> None:
    assert host_of(url) == host


TASKS = st.integers(0, 7).map("t{}".format)
HOSTS = st.integers(0, 2).map("http://h{}.example/x".format)


class DeliveriesMachine(RuleBasedStateMachine):
    """A log of one partition, a process that reads it and attempts due deliveries, a clock, and rebalances."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = PendingDeliveries()
        self.pending.assign([0])
        self.log: list[Record] = []
        self.position = 0
        self.has_read = False
        self.committed = 0
        self.now = 0
        self.in_progress: list[Delivery] = []

    def newest(self) -> dict[str, Record]:
        return {record.task_id: record for record in self.log}

    @rule(task=TASKS, url=HOSTS)
    def builder_writes(self, task: str, url: str) -> None:
        if task not in self.newest():
            self.log.append(owed(task, url))

    @rule(count=st.integers(1, 5))
    def reads(self, count: int) -> None:
        for record in self.log[self.position : self.position + count]:
            self.pending.on_read(0, self.position, record, encode(record))
            self.position += 1
            self.has_read = True

    @precondition(lambda self: self.position == len(self.log) and self.pending.unready())
    @rule()
    def reaches_the_end(self) -> None:
        self.pending.set_ready(0)

    @rule()
    def tries(self) -> None:
        for delivery in self.pending.start_due(self.now):
            record = CODEC.decode(delivery.value)
            assert isinstance(record, Owed)
            assert record.due_ms <= self.now
            assert delivery.task_id not in {other.task_id for other in self.in_progress}
            assert not self.pending.unready(), "nothing starts before the end of the log"
            assert self.newest()[delivery.task_id] == record, "the newest record is attempted"
            self.in_progress.append(delivery)

    @precondition(lambda self: self.in_progress)
    @rule(data=st.data(), is_delivered=st.booleans(), pause=st.integers(1, 20))
    def a_try_ends(self, data: st.DataObject, is_delivered: bool, pause: int) -> None:
        delivery = data.draw(st.sampled_from(self.in_progress))
        self.in_progress.remove(delivery)
        before = CODEC.decode(delivery.value)
        assert isinstance(before, Owed)
        after: Record = (
            Settled(delivery.task_id, "delivered", before.tries + 1)
            if is_delivered
            else owed(delivery.task_id, before.url, self.now + pause, before.tries + 1)
        )
        self.log.append(after)
        self.pending.on_written(0, len(self.log) - 1, after, encode(after))
        self.pending.finish(delivery, is_failing=not is_delivered)

    @rule(by=st.integers(1, 30))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule()
    def commits(self) -> None:
        resume = self.pending.resume_offsets().get(0, self.committed)
        # While the log is read again, nothing is committed that lies ahead.
        self.committed = resume if resume <= self.position else self.committed

    @rule()
    def rebalances(self) -> None:
        self.position = self.committed

    @rule()
    def is_killed(self) -> None:
        self.pending = PendingDeliveries()
        self.pending.assign([0])
        self.position = self.committed
        self.has_read = False
        self.in_progress = []

    @invariant()
    def a_successor_resumes_with_the_oldest_pending_delivery(self) -> None:
        resume = self.pending.resume_offsets()
        last = {record.task_id: place for place, record in enumerate(self.log)}
        owed = [place for place in last.values() if isinstance(self.log[place], Owed)]
        assert all(resume.get(0, 0) <= place for place in owed)
        if self.pending.unready() or not self.has_read:
            assert resume == {}
        elif self.position == len(self.log):
            assert resume == {0: min(owed, default=self.position)}

    def teardown(self) -> None:
        """With a working endpoint, every delivery is settled in the end."""
        for _ in range(200):
            self.reads(len(self.log) + 1)
            if self.pending.unready():
                self.pending.set_ready(0)
            self.now += 100
            self.tries()
            for delivery in list(self.in_progress):
                after = Settled(delivery.task_id, "delivered", 1)
                self.in_progress.remove(delivery)
                self.log.append(after)
                self.pending.on_written(0, len(self.log) - 1, after, encode(after))
                self.pending.finish(delivery, is_failing=False)
        assert all(isinstance(record, Settled) for record in self.newest().values())
        assert len(self.pending) == 0


TestPendingDeliveries = DeliveriesMachine.TestCase
TestPendingDeliveries.settings = settings(max_examples=60, stateful_step_count=40)
