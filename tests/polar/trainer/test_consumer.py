"""The consumer against a real Kafka: sync and async, whole groups, checkpoints, waits that end, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import UnsupportedCodecError
from numpy.typing import NDArray

from polar.trainer import Group, TrajectoryConsumer, drop_zero_advantage, reader
from tests import older_log
from tests.analytics.loading import Sent, send
from tests.polar.trainer.writing import PARTITIONS, Writer, finished, group, trajectory
from topics import trajectories
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import FencedProducer, Write
from topics.types.errors import InputError, NotReadyError
from topics.types.trajectory import ExpandedTrace, Trajectory

pytestmark = pytest.mark.contract

TASKS = [f"task-{number}" for number in range(12)]
"""Enough that no partition is without one."""
QUIET_S = 0.3


def consumer(settings: Settings, **options: Any) -> TrajectoryConsumer:
    """One that ends when nothing new comes."""
    return TrajectoryConsumer(settings=settings, **{"timeout_s": QUIET_S, **options})


async def read(settings: Settings, **options: Any) -> list[Trajectory]:
    async with consumer(settings, **options) as opened:
        return [one async for one in opened]


def arrays(trace: ExpandedTrace) -> list[NDArray[Any]]:
    return [trace.token_ids, trace.loss_mask, trace.logprobs]


def names(found: list[Trajectory]) -> list[str]:
    return sorted(one.session_id for one in found)


@pytest.fixture
async def filled(writer: Writer) -> Writer:
    """Twelve groups of two."""
    await writer.write(record for task in TASKS for record in group(task, [0.0, 1.0]))
    return writer


ALL = sorted(f"{task}.{index}" for task in TASKS for index in (0, 1))


async def test_groups_come_whole_and_by_sample_index(settings: Settings, filled: Writer) -> None:
    await filled.write([trajectory("half", 0, 2)])
    with consumer(settings) as opened:
        plain: list[Group] = list(opened.groups())
    async with consumer(settings) as opened:
        found = [one async for one in opened.groups()]
    assert sorted(one.task_id for one in plain) == sorted(one.task_id for one in found) == sorted(TASKS)
    assert all([one.sample_index for one in each.trajectories] == [0, 1] for each in plain)
    assert all(each.rewards == [0.0, 1.0] for each in plain)


async def test_a_trajectory_is_arrays_for_a_trainer(settings: Settings, writer: Writer) -> None:
    await writer.write([trajectory("t", 5, 8, 0.5)])
    (found,) = await read(settings)
    (trace,) = found.expanded()
    assert [array.dtype for array in arrays(trace)] == [np.dtype(kind) for kind in ("int32", "uint8", "float32")]
    assert trace.token_ids.tolist() == [1, 2, 3, 10, 5]
    assert trace.loss_mask.tolist() == [0, 0, 0, 1, 1]
    assert trace.logprobs.tolist() == [0, 0, 0, -0.5, -0.25]
    assert all(array.flags.writeable for array in arrays(trace)), "torch.from_numpy takes no other"
    assert [(span.call.policy_version, span.start, span.end) for span in trace.spans] == [(7, 3, 5)]
    assert (found.reward, found.task_metadata()) == (0.5, {"set": "train"})


@pytest.mark.parametrize("items", ["trajectories", "groups"])
async def test_a_state_goes_on_where_it_was_taken(settings: Settings, filled: Writer, items: str) -> None:
    def ids(opened: TrajectoryConsumer) -> Iterator[str]:
        return (one.task_id for one in opened.groups()) if items == "groups" else (one.session_id for one in opened)

    with consumer(settings) as opened:
        whole = sorted(ids(opened))
    with consumer(settings) as opened:
        found = []
        for one in ids(opened):
            found.append(one)
            if len(found) == 5:
                break
        state = json.loads(json.dumps(opened.state_dict()))
        found += ids(opened)
        assert sorted(found) == whole, "a second loop goes on where the first ended"
        opened.load_state_dict(state)
        assert sorted(found[:5] + list(ids(opened))) == whole, "so does one that was set back"
    with consumer(settings) as opened:
        opened.load_state_dict(state)
        assert sorted(found[:5] + list(ids(opened))) == whole, "so does another process"


async def test_a_consumer_that_is_opened_again_goes_on(settings: Settings, filled: Writer) -> None:
    """The plain loop runs inside a running loop here, as it does in a notebook, and gives what `async for` does."""
    again = consumer(settings)
    with again:
        first = next(iter(again))
    with again:
        assert names([first, *again]) == names(await read(settings)) == ALL
        with pytest.raises(InputError, match="this consumer yields trajectories; open a second one"):
            next(iter(again.groups()))


async def test_latest_begins_when_the_consumer_is_opened(settings: Settings, filled: Writer) -> None:
    async with consumer(settings, timeout_s=None) as opened:
        # A commit is acknowledged before every partition shows it.
        seen = opened.groups()
        for _ in TASKS:
            await anext(aiter(seen))
    async with consumer(settings, start="latest") as opened:
        await filled.write(group("new", [1.0]))
        found = [one async for one in opened.groups()]
    assert [one.task_id for one in found] == ["new"]


async def test_without_a_timeout_it_waits_for_what_comes(settings: Settings, writer: Writer) -> None:
    async with TrajectoryConsumer(settings=settings) as opened:
        waiting = asyncio.ensure_future(anext(aiter(opened)))
        await asyncio.wait({waiting}, timeout=3 * reader.POLL_MS / 1000)
        assert not waiting.done()
        await writer.write([trajectory("t")])
        assert (await asyncio.wait_for(waiting, 10)).session_id == "t.0"


async def test_an_interrupted_wait_loses_nothing(settings: Settings, writer: Writer) -> None:
    """Ctrl-C in a notebook, and the loop run again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with consumer(settings, timeout_s=None) as opened:
            threading.Timer(QUIET_S, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                next(iter(opened))
            await writer.write([trajectory("t")])
            assert next(iter(opened)).session_id == "t.0"
    finally:
        signal.signal(signal.SIGINT, before)


async def test_an_interrupt_while_a_record_is_decoded_loses_nothing(
    settings: Settings, filled: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, at each record once."""
    interrupted: set[bytes] = set()
    decode = trajectories.CODEC.decode

    def interrupting(data: bytes) -> Any:
        if data not in interrupted:
            interrupted.add(data)
            raise KeyboardInterrupt
        return decode(data)

    monkeypatch.setattr(trajectories.CODEC, "decode", interrupting)
    found: list[Group] = []
    with consumer(settings) as opened:
        while len(found) < len(TASKS):
            with suppress(KeyboardInterrupt):
                found += iter(opened.groups())
    assert len(interrupted) == 3 * len(TASKS)
    assert sorted(one.task_id for one in found) == sorted(TASKS)
    assert not opened.skipped


async def test_what_is_not_committed_is_not_read(settings: Settings, filled: Writer) -> None:
    """And a consumer that has read up to an open transaction has read all that there is."""
    name = trajectories.TOPIC.full_name(settings.namespace)
    other = FencedProducer(settings, "other")
    await other.start()
    try:
        await other.begin()
        await other.write([Write(name, number, b"x", encode(trajectory("open"))) for number in range(PARTITIONS)])
        assert len(await read(settings)) == 2 * len(TASKS)
    finally:
        await other.stop()


async def test_records_that_say_nothing_are_counted_and_passed_over(settings: Settings, writer: Writer) -> None:
    unknown = msgspec.msgpack.encode({"type": "of_next_year"})
    await writer.write([b"\xff", unknown], task_id="t")
    await writer.write([trajectory("t")])
    async with consumer(settings) as opened:
        assert [one.session_id async for one in opened] == ["t.0"]
    assert opened.skipped == {"undecodable": 1, "unknown_of_next_year": 1}


async def test_a_consumer_of_one_run_yields_nothing_else(settings: Settings, writer: Writer) -> None:
    async def all_of(run: str | None) -> dict[str, list[str]]:
        async with consumer(settings, run=run) as opened:
            found = {"trajectories": sorted([one.task_id async for one in opened])}
            passed = opened.skipped["other_run"]
        async with consumer(settings, run=run) as opened:
            found["groups"] = sorted([one.task_id async for one in opened.groups()])
            assert passed + len(found["trajectories"]) == 3 * 2
            assert opened.skipped == Counter({"other_run": passed})
        return found

    records = [
        *in_run("night", group("a", [0.0, 1.0])),
        *in_run("day", group("b", [0.0, 1.0])),
        *group("c", [0.0, 1.0]),
    ]
    await writer.write(records)
    assert await all_of("night") == {"trajectories": ["a", "a"], "groups": ["a"]}
    assert await all_of(None) == {"trajectories": ["a", "a", "b", "b", "c", "c"], "groups": ["a", "b", "c"]}
    assert await all_of("nobodys") == {"trajectories": [], "groups": []}
    with pytest.raises(InputError, match="run: must match"):
        consumer(settings, run="a b")


def in_run(run: str, records: list[trajectories.Output]) -> list[trajectories.Output]:
    return [msgspec.structs.replace(record, run=run) for record in records]


async def test_a_state_of_one_run_goes_on_in_that_run_alone(settings: Settings, writer: Writer) -> None:
    await writer.write([*in_run("night", [trajectory("a"), trajectory("b")]), trajectory("c")])
    async with consumer(settings, run="night") as opened:
        first = (await anext(aiter(opened))).task_id
        state = json.loads(json.dumps(opened.state_dict()))
    async with consumer(settings, run="night") as opened:
        opened.load_state_dict(state)
        assert [one.task_id async for one in opened] == [name for name in ("a", "b") if name != first]
    for other in ("day", None):
        with pytest.raises(InputError, match=r"state\.run") as raised:
            consumer(settings, run=other).load_state_dict(state)
        assert raised.value.field == "state.run"
    state["run"] = None
    consumer(settings, run="day").load_state_dict(state)


async def test_an_output_is_read_by_any_of_its_names(settings: Settings) -> None:
    async with Writer(settings, "eval") as evaluated:
        await evaluated.write([trajectory("e")])
    for name in ("eval", "trajectories.eval", trajectories.EVAL.full_name(settings.namespace)):
        assert names(await read(settings, topic=name)) == ["e.0"]


async def test_an_output_that_is_missing_is_an_error_that_lists_the_existing_ones(
    settings: Settings, writer: Writer
) -> None:
    async with Writer(settings, "eval"):
        with pytest.raises(NotReadyError, match=r"no output topic .*\.trajectories\.evil: .* existing ones: eval$"):
            await read(settings, topic="evil")


async def removed(settings: Settings, before: int) -> None:
    """What retention does: the first records of every partition leave the log."""
    name = trajectories.TOPIC.full_name(settings.namespace)
    client: Any = kafka.admin(settings)
    await client.start()
    try:
        removal = RecordsToDelete(before)
        await client.delete_records({kafka.TopicPartition(name, number): removal for number in range(PARTITIONS)})
    finally:
        await client.close()


async def test_records_that_left_the_log_unread_are_an_error_unless_they_may(
    settings: Settings, filled: Writer
) -> None:
    async with consumer(settings) as opened:
        state = opened.state_dict()
    await removed(settings, before=4)
    async with consumer(settings) as opened:
        opened.load_state_dict(state)
        with pytest.raises(
            NotReadyError,
            match=r"the records from 0 to 3 were removed by retention before they were read; allow_gap=True continues",
        ):
            await anext(aiter(opened))
    left = Counter(one.task_id for one in await read(settings))
    async with consumer(settings, allow_gap=True) as opened:
        opened.load_state_dict(state)
        groups = [one.task_id async for one in opened.groups()]
    assert sorted(groups) == sorted(task for task, samples in left.items() if samples == 2)
    assert opened.skipped["incomplete_group"] == sum(samples == 1 for samples in left.values()) > 0


@pytest.mark.parametrize("allow_gap", [False, True])
async def test_records_may_leave_the_log_under_a_slow_reader(
    settings: Settings, writer: Writer, monkeypatch: pytest.MonkeyPatch, allow_gap: bool
) -> None:
    """One record a fetch, so that nothing of what is removed was read ahead."""
    monkeypatch.setattr(reader, "FETCH_BYTES", 1)
    monkeypatch.setattr(reader, "PARTITION_FETCH_BYTES", 1)
    for task in TASKS:
        for number in range(3):
            await writer.write([trajectory(task, number, 3)])
    async with consumer(settings, allow_gap=allow_gap) as opened:
        first = await anext(aiter(opened))
        await removed(settings, before=4)
        if allow_gap:
            left = [one async for one in opened]
            later = await read(settings)
            assert {*names(later)} <= {first.session_id, *names(left)}
        else:
            with pytest.raises(NotReadyError, match="were removed by retention before they were read"):
                async for _ in opened:
                    pass


async def test_who_reads_on_after_an_error_misses_nothing(
    settings: Settings, filled: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a batch that can't be unpacked: aiokafka has moved on in the other partitions when it raises."""
    whole, broken = AIOKafkaConsumer.getmany, asyncio.Event()

    async def getmany(client: AIOKafkaConsumer, **options: Any) -> Any:
        found = await whole(client, **options)
        if found and not broken.is_set():
            broken.set()
            raise UnsupportedCodecError
        return found

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", getmany)
    async with consumer(settings) as opened:
        with pytest.raises(NotReadyError, match="can't be read: UnsupportedCodecError"):
            await anext(aiter(opened))
        found = [one async for one in opened]
    assert names(found) == ALL


async def test_a_forked_process_must_open_a_consumer_of_its_own(settings: Settings, filled: Writer) -> None:
    def error_in_a_child() -> str:
        with consumer(settings) as opened:
            ours, theirs = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    next(iter(opened))
                except BaseException as error:
                    os.write(theirs, repr(error).encode())
                finally:
                    os._exit(0)
            os.close(theirs)
            reply = os.read(ours, 1000) if select.select([ours], [], [], 10)[0] else b"nothing"
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(ours)
            return reply.decode()

    assert "opened before the process was forked" in await asyncio.to_thread(error_in_a_child)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda state: state.update(topic="trajectories.eval"), "state.topic"),
        (lambda state: state.update(namespace="other"), "state.topic"),
        (lambda state: state["partitions"].pop("0"), "state.partitions"),
        (lambda state: state["partitions"].update({"0": {"start": 999, "next": 999}}), "state.partitions.0"),
        (lambda state: state.update(items="groups"), "items"),
    ],
)
async def test_a_state_of_something_else_is_refused(
    settings: Settings, filled: Writer, change: Callable[[dict[str, Any]], object], field: str
) -> None:
    async with consumer(settings) as opened:
        state = opened.state_dict()
        change(state)
        with pytest.raises(InputError) as raised:  # noqa: PT012 - either of both statements raises
            opened.load_state_dict(state)
            await anext(aiter(opened))
    assert raised.value.field == field


@pytest.mark.parametrize("items", ["trajectories", "groups"])
async def test_a_state_of_records_that_the_topic_lost_is_refused_also_once_it_has_grown_past_them(
    settings: Settings, items: str
) -> None:
    """As after the broker was restored from an older copy."""
    names = [f"{word}-{number}" for word in ("kept", "lost", "added") for number in range(12)]

    async def add(word: str) -> None:
        for name in (name for name in names if name.startswith(word)):
            await send(settings, *(Sent(trajectories.TOPIC, name, name, each) for each in group(name, [0.0, 1.0])))

    await admin.apply(settings, [trajectories.TOPIC], embedded=True)
    states, copies = {}, {}
    for word in ("kept", "lost"):
        await add(word)
        copies[word] = await older_log.copy(settings, trajectories.TOPIC)
        async with consumer(settings) as opened:
            _ = [one async for one in (opened if items == "trajectories" else opened.groups())]
            states[word] = json.loads(json.dumps(opened.state_dict()))
    await older_log.restore(settings, copies["kept"])
    for word in ("added", "added"):
        await add(word)
    async with consumer(settings) as opened:
        opened.load_state_dict(states["lost"])
        with pytest.raises(InputError, match=r"\[\d\] has another record at \d+: .* restored from an older copy"):
            await anext(aiter(opened if items == "trajectories" else opened.groups()))
        opened.load_state_dict(states["kept"])
        found = [one.task_id async for one in (opened if items == "trajectories" else opened.groups())]
    assert set(found) == {name for name in names if name.startswith("added")}


async def test_a_consumer_is_used_while_it_is_open(settings: Settings, writer: Writer) -> None:
    with pytest.raises(InputError, match="must be earliest or latest"):
        consumer(settings, start="now")
    closed = consumer(settings)
    with pytest.raises(RuntimeError, match="inside `with"):
        next(iter(closed))
    with pytest.raises(RuntimeError, match="inside `with"):
        closed.state_dict()
    async with closed:
        with pytest.raises(RuntimeError, match="iterated by `async for`"):
            next(iter(closed))


def test_without_a_system_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("POLAR_KAFKA", raising=False)
    with pytest.raises(NotReadyError, match="start one with `polar up`"), TrajectoryConsumer(tmp_path):
        pass


def test_importing_it_costs_no_kafka_client() -> None:
    code = "import polar.trainer, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiokafka", "numpy", "pydantic"} & set(loaded)


async def test_a_group_leaves_with_the_samples_that_are_there_and_never_again(
    settings: Settings, writer: Writer
) -> None:
    """Nothing more comes meanwhile; the deadline is the log's, and another process goes on from the state."""
    policy: dict[str, Any] = {"at_least": 2, "within_s": 0.5}
    await writer.write([trajectory("t", 0, 4, 1.0), trajectory("t", 3, 4, 0.0)])
    async with TrajectoryConsumer(settings=settings) as opened:
        async with asyncio.timeout(20):
            early = await anext(aiter(opened.groups(**policy)))
        state = json.loads(json.dumps(opened.state_dict()))
    assert [one.sample_index for one in early.trajectories] == [0, 3]
    await writer.write(
        [trajectory("t", 1, 4), trajectory("t", 2, 4), finished("t", [1.0] * 4), *group("u", [1.0, 0.0])]
    )
    async with consumer(settings) as opened:
        opened.load_state_dict(state)
        assert [one.task_id async for one in opened.groups(**policy)] == ["u"]
    assert opened.skipped == {"late_sample": 2}


async def test_what_rules_drop_is_counted_and_what_they_keep_comes_as_they_leave_it(
    settings: Settings, writer: Writer
) -> None:
    def last_sample_out(found: Group, counts: Counter[str]) -> Group:
        counts["last_out"] += 1
        return Group(found.task_id, found.trajectories[:-1])

    tasks: dict[str, list[float | None]] = {"same": [1.0, 1.0], "few": [1.0, None, 0.0], "kept": [1.0, 0.0, 1.0]}
    await writer.write(record for task, rewards in tasks.items() for record in group(task, rewards))
    with consumer(settings) as opened:
        found = list(opened.groups(drop_zero_advantage, last_sample_out, at_least=2))
    assert [(one.task_id, one.rewards) for one in found] == [("kept", [1.0, 0.0])]
    assert opened.skipped == {"zero_advantage": 1, "last_out": 2, "too_few_usable": 1}
    assert len(opened.state_dict()["partitions"]) == PARTITIONS


async def test_a_group_whose_rule_raises_is_checked_again_and_counts_as_yielded_only_then(
    settings: Settings, filled: Writer
) -> None:
    """By the same consumer, and by another from a state that was taken after the error."""
    calls: Counter[str] = Counter()

    def failing(found: Group, counts: Counter[str]) -> Group:
        calls[found.task_id] += 1
        counts["seen"] += 1
        if found.task_id == TASKS[0] and calls[TASKS[0]] < 3:
            raise TimeoutError("no version")
        return found

    with consumer(settings) as opened:
        with pytest.raises(TimeoutError):
            list(opened.groups(failing))
        state = json.loads(json.dumps(opened.state_dict()))
        with consumer(settings) as another:
            another.load_state_dict(state)
            remaining = [one.task_id for one in another.groups()]
        with pytest.raises(TimeoutError):
            next(iter(opened.groups(failing)))
        assert opened.state_dict() == state
        assert not opened.skipped.keys() - {"seen"}
        opened.skipped.clear()
        again = [one.task_id for one in opened.groups(failing)]
    assert TASKS[0] in again
    assert sorted(again) == sorted(remaining)
    assert opened.skipped["seen"] == len(again), "what a rule counted before it raised isn't counted twice"


async def test_a_consumer_that_is_closed_while_a_rule_fails_gives_the_group_again(
    settings: Settings, writer: Writer
) -> None:
    def failing(found: Group, counts: Counter[str]) -> Group:
        raise TimeoutError("no version")

    await writer.write(group("t", [0.0, 1.0]))
    opened = consumer(settings)
    with opened, pytest.raises(TimeoutError):
        next(iter(opened.groups(failing)))
    with opened:
        assert [one.task_id for one in opened.groups()] == ["t"]
