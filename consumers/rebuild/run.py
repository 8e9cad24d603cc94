"""`polar rebuild`: trajectories made again from the log, by any builder, into a topic of their own.

Reads `polar.completions` from its beginning, folds it as the builder does and takes the same way from a session's calls to its trajectory;
each is marked as rebuilt. One transaction holds some sessions' trajectories and their groups' ends. What is in the output already is not
written again, so that a run which was cut short is taken up by the same command, and one that came to its end changes nothing; two at once
into one output are kept apart by the broker, which fences the first. Sessions that their builder failed on aren't written, so that they are
built when it is mended. What is to be refused is looked for before anything is written: the log is read twice. Nothing else on it is
touched: no fact, no offset, no webhook.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import aclosing

from consumers.rebuild import log, output
from consumers.rebuild.log import Passed
from consumers.rebuild.partition import Partition
from consumers.rebuild.wanted import Done, Wanted, check_output
from topics import completions, trajectories
from topics.completions import Build, CloseGroup
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import FencedProducer, LogGapError, OwnershipLostError, read_back
from topics.log.refusals import refusal
from topics.types.errors import InputError, NotReady

Own = dict[str, tuple[str, bytes]]
"""Sessions that are built as they were, by whom and with which settings."""


async def rebuild(settings: Settings, wanted: Wanted, told: Callable[[int, int], None] = lambda *_: None) -> Done:
    """Rebuild all that is wanted; `told` gets the offsets passed, of how many.

    Raises InputError for an output that a builder writes, or that holds what was built otherwise; NotReady where Kafka is away or refuses
    it, where the log loses what is read, and where another run into the same output has begun.
    """
    check_output(wanted.into)
    began = time.monotonic()
    done = Done()
    try:
        await _rebuild(settings, wanted, done, told)
    except (kafka.KafkaError, OwnershipLostError, TimeoutError) as error:
        if (refused := refusal(settings, error.__cause__ or error)) is not None:
            raise refused from None
        reason = "the same command goes on from here"
        if isinstance(error, OwnershipLostError) and not isinstance(error, LogGapError):
            reason += f", unless another `polar rebuild --into {wanted.into}` is running"
        raise NotReady(f"{error if str(error) else repr(error)}; {reason}") from None
    done.seconds = time.monotonic() - began
    return done


async def _rebuild(settings: Settings, wanted: Wanted, done: Done, told: Callable[[int, int], None]) -> None:
    spans = await log.spans(settings)
    passed = Passed(told, spans)
    own = await _looked_at(settings, wanted, done, passed, spans)
    done.tasks_missing = sorted(wanted.tasks - done.tasks)
    if not done.tasks:  # so that not even the topic is made
        return
    await _make_output(settings, wanted, own, spans)
    for partition, (first, _) in spans.items():
        fenced = FencedProducer(settings, f"rebuild.{wanted.into}.{partition}")
        try:
            await fenced.start()
            # Learnt only now: a run that this one has just fenced may have written.
            out = await output.read(settings, wanted, partition)
            await Partition(settings, partition, wanted, fenced, done, passed, out, first).run()
        finally:
            await fenced.stop()


async def _looked_at(
    settings: Settings, wanted: Wanted, done: Done, passed: Passed, partitions: Collection[int]
) -> Own:
    """What of the log is wanted. Raises InputError where a builder writes the output."""
    own: Own = {}
    topic = completions.TOPIC.full_name(settings.namespace)
    for partition in partitions:
        async with aclosing(read_back(settings, topic, partition)) as records:
            async for record in records:
                passed.looked_at(partition, record.offset)
                task_id = log.task_of(record)
                is_wanted = wanted.takes(task_id)
                known = completions.CODEC.known(record.value)
                if is_wanted and known is None:
                    done.unreadable += 1
                elif is_wanted:
                    done.tasks.add(task_id)
                match known:
                    case Build(output=to) | CloseGroup(output=to) as asked if to == wanted.into:
                        reason = f"it is the output of task {asked.task_id}, which the builder writes; name another"
                        raise InputError("--into", wanted.into, reason)
                    case Build() as build if wanted.builder is None and is_wanted:
                        own[build.session_id] = build.builder, build.builder_config
    return own


async def _make_output(settings: Settings, wanted: Wanted, own: Own, partitions: Collection[int]) -> None:
    """Raises InputError, before anything is written, where it holds what was built otherwise."""
    await admin.apply(settings, [trajectories.topic(wanted.into)], embedded=settings.replication == 1)
    for partition in partitions:
        out = await output.read(settings, wanted, partition)
        for session_id in own.keys() & out.built.keys():
            out.refuse_another(session_id, own[session_id], wanted.into)
