"""Which debts are tried, and from where a successor must read: for any order of records, tries, rebalances."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumers.webhooks.debts import IN_ALL, PER_HOST, TO_ILL_HOST, Debt, Debts, host_of
from topics.contract.codec import encode
from topics.types.session import Status
from topics.webhooks import CODEC, Owed, Record, Settled


def owed(task_id: str, url: str = "http://a.example/x", due_ms: int = 0, tries: int = 0) -> Owed:
    return Owed(task_id, url, 0, [1.0], [Status.COMPLETED], tries=tries, due_ms=due_ms)


def read(debts: Debts, *records: Record, number: int = 0, offset: int = 0) -> None:
    for place, record in enumerate(records, start=offset):
        debts.read(number, place, record, encode(record))


def holding(*records: Record) -> Debts:
    """One partition, read to its end."""
    debts = Debts()
    debts.hold([0])
    read(debts, *records)
    debts.ready(0)
    return debts


def test_nothing_is_tried_before_the_end_of_the_log_and_nothing_that_was_settled_there() -> None:
    debts = Debts()
    debts.hold([0])
    read(debts, owed("t1"), owed("t2"), Settled("t1", "delivered", 1))
    assert debts.start(0) == []
    assert debts.low_water() == {}
    debts.ready(0)
    assert [debt.task_id for debt in debts.start(0)] == ["t2"]
    assert debts.low_water() == {0: 1}


def test_a_host_that_hangs_holds_a_few_places_and_others_are_told_at_once() -> None:
    many = [owed(f"t{n}", "https://dead.example/x") for n in range(1000)]
    debts = holding(*many, owed("other", "https://well.example/x"))
    started = debts.start(0)
    dead = [debt for debt in started if debt.host == "dead.example"]
    assert [debt.task_id for debt in started if debt not in dead] == ["other"]
    assert len(dead) == PER_HOST
    for place, debt in enumerate(dead, start=2000):
        later = owed(debt.task_id, "https://dead.example/x", due_ms=5000, tries=1)
        debts.write(0, place, later, encode(later))
        debts.finished(debt, ill=True)
    assert len(debts.start(0)) == TO_ILL_HOST
    assert debts.next_due_ms() is None


def test_all_hosts_together_hold_no_more_than_all_places() -> None:
    debts = holding(*(owed(f"t{n}", f"http://h{n % 40}.example/") for n in range(1000)))
    assert len(debts.start(0)) == IN_ALL
    assert debts.next_due_ms() is None


def test_a_partition_that_is_read_anew_after_a_rebalance_is_not_told_what_is_settled_further_on() -> None:
    log: list[Record] = [owed("t1"), owed("t2"), Settled("t2", "delivered", 1)]
    debts = holding(*log)
    (debt,) = debts.start(0)
    read(debts, *log[:2])  # from the low water again
    assert debts.unready() == [0]
    read(debts, *log[2:], offset=2)
    debts.ready(0)
    assert debts.start(0) == []  # t1 is under way
    settled = Settled("t1", "delivered", 1)
    debts.write(0, 3, settled, encode(settled))
    debts.finished(debt, ill=False)
    assert len(debts) == 0
    assert debts.start(0) == []
    assert debts.low_water() == {0: 3}


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Trainer.Example:8443/a?b=c", "trainer.example:8443"),
        ("http://user:word@x.example", "x.example"),
        ("http://[::1", ""),
        ("nonsense", ""),
    ],
)
def test_a_host_is_what_the_url_says_with_its_port(url: str, host: str) -> None:
    assert host_of(url) == host


TASKS = st.integers(0, 7).map("t{}".format)
HOSTS = st.integers(0, 2).map("http://h{}.example/x".format)


class DebtsMachine(RuleBasedStateMachine):
    """A log of one partition, a process that reads it and tries what is due, a clock, and rebalances."""

    def __init__(self) -> None:
        super().__init__()
        self.debts = Debts()
        self.debts.hold([0])
        self.log: list[Record] = []
        self.position = 0
        self.committed = 0
        self.now = 0
        self.under_way: list[Debt] = []

    def newest(self) -> dict[str, Record]:
        return {record.task_id: record for record in self.log}

    @rule(task=TASKS, url=HOSTS)
    def builder_writes(self, task: str, url: str) -> None:
        if task not in self.newest():
            self.log.append(owed(task, url))

    @rule(count=st.integers(1, 5))
    def reads(self, count: int) -> None:
        for record in self.log[self.position : self.position + count]:
            self.debts.read(0, self.position, record, encode(record))
            self.position += 1

    @precondition(lambda self: self.position == len(self.log) and self.debts.unready())
    @rule()
    def reaches_the_end(self) -> None:
        self.debts.ready(0)

    @rule()
    def tries(self) -> None:
        for debt in self.debts.start(self.now):
            record = CODEC.decode(debt.value)
            assert isinstance(record, Owed)
            assert record.due_ms <= self.now
            assert debt.task_id not in {other.task_id for other in self.under_way}
            if not self.debts.unready() and self.position == len(self.log):
                assert self.newest()[debt.task_id] == record, "what is tried is what the log says"
            self.under_way.append(debt)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), is_delivered=st.booleans(), pause=st.integers(1, 20))
    def a_try_ends(self, data: st.DataObject, is_delivered: bool, pause: int) -> None:
        debt = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(debt)
        before = CODEC.decode(debt.value)
        assert isinstance(before, Owed)
        after: Record = (
            Settled(debt.task_id, "delivered", before.tries + 1)
            if is_delivered
            else owed(debt.task_id, before.url, self.now + pause, before.tries + 1)
        )
        self.log.append(after)
        self.debts.write(0, len(self.log) - 1, after, encode(after))
        self.debts.finished(debt, ill=not is_delivered)

    @rule(by=st.integers(1, 30))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule()
    def commits(self) -> None:
        self.committed = self.debts.low_water().get(0, self.committed)

    @rule()
    def rebalances(self) -> None:
        self.position = self.committed

    @rule()
    def is_killed(self) -> None:
        self.debts = Debts()
        self.debts.hold([0])
        self.position = self.committed
        self.under_way = []

    @invariant()
    def what_is_owed_lies_at_or_after_the_low_water(self) -> None:
        low = self.debts.low_water().get(0, 0)
        last = {record.task_id: place for place, record in enumerate(self.log)}
        assert all(low <= place for task, place in last.items() if isinstance(self.log[place], Owed))

    def teardown(self) -> None:
        """Left alone, with an endpoint that is well, everything is settled."""
        for _ in range(200):
            self.reads(len(self.log) + 1)
            if self.debts.unready():
                self.debts.ready(0)
            self.now += 100
            self.tries()
            for debt in list(self.under_way):
                after = Settled(debt.task_id, "delivered", 1)
                self.under_way.remove(debt)
                self.log.append(after)
                self.debts.write(0, len(self.log) - 1, after, encode(after))
                self.debts.finished(debt, ill=False)
        assert all(isinstance(record, Settled) for record in self.newest().values())
        assert len(self.debts) == 0


TestDebts = DebtsMachine.TestCase
TestDebts.settings = settings(max_examples=60, stateful_step_count=40)
