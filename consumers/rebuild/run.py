"""`polar rebuild` builds trajectories again from the log, with any builder, into a topic of their own.

It reads `polar.completions` from its beginning and builds each session as the builder does; each trajectory is marked as rebuilt. One
transaction holds some sessions' trajectories and their groups' ends. Sessions that the output already holds aren't written again, so the
same command continues an interrupted run and changes nothing after a complete one. If two runs write one output, the broker fences the
first. Sessions whose builder failed aren't written, so that they are built when the builder is fixed. The log is read twice: everything
that may be refused is checked before anything is written. Nothing else changes: no fact, no offset, no webhook.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import aclosing

from consumers.rebuild.partition import PartitionRebuild, read_output, task_of
from consumers.rebuild.request import Progress, RebuildReport, RebuildRequest
from topics import completions, trajectories
from topics.completions import Build, CloseGroup
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import STOP_DEADLINE_S, FencedProducer, LogGapError, OwnershipLostError, read_back
from topics.log.refusals import refusal
from topics.types.errors import InputError, NotReadyError

Spans = Mapping[int, tuple[int, int]]
"""By partition: the log's first offset and its end."""
Builders = dict[str, tuple[str, bytes]]
"""By session: its own builder and settings. Empty if the request names a builder."""


async def rebuild(
    settings: Settings, request: RebuildRequest, on_progress: Callable[[int, int], None] = lambda *_: None
) -> RebuildReport:
    """Rebuild what is requested; `on_progress` gets the number of offsets read and their total.

    Raises InputError for an output that a builder writes or that holds sessions built otherwise. Raises NotReadyError if Kafka is away or
    refuses access, if the log loses records that are being read, and if another run into the same output has begun.
    """
    began = time.monotonic()
    report = RebuildReport()
    try:
        await _rebuild(settings, request, report, on_progress)
    except (kafka.KafkaError, OwnershipLostError, TimeoutError) as error:
        if (refused := refusal(settings, error.__cause__ or error)) is not None:
            raise refused from None
        reason = "the same command goes on from here"
        if isinstance(error, OwnershipLostError) and not isinstance(error, LogGapError):
            reason += f", unless another `polar rebuild --into {request.into}` is running"
        raise NotReadyError(f"{error if str(error) else repr(error)}; {reason}") from None
    report.seconds = time.monotonic() - began
    return report


async def _rebuild(
    settings: Settings, request: RebuildRequest, report: RebuildReport, on_progress: Callable[[int, int], None]
) -> None:
    spans = await _spans(settings)
    progress = Progress(on_progress, spans)
    builders = await _check_log(settings, request, report, progress, spans)
    report.tasks_missing = sorted(request.tasks - report.tasks)
    if not report.tasks:  # don't even create the topic
        return
    await _make_output(settings, request, builders, spans)
    for partition, (first, _) in spans.items():
        fenced = FencedProducer(settings, f"rebuild.{request.into}.{partition}")
        try:
            await fenced.start()
            # Read only now: a run that this one has just fenced may have written.
            output = await read_output(settings, request, partition)
            await PartitionRebuild(settings, partition, request, fenced, report, progress, output, first).run()
        finally:
            await fenced.stop()


async def _spans(settings: Settings) -> Spans:
    topic = completions.TOPIC.full_name(settings.namespace)
    sources = [kafka.TopicPartition(topic, p) for p in range(await admin.partition_count(settings, topic))]
    async with kafka.started(kafka.consumer(settings, committed=False), STOP_DEADLINE_S) as consumer:
        firsts, ends = await consumer.beginning_offsets(sources), await consumer.end_offsets(sources)
    return {source.partition: (firsts[source], ends[source]) for source in sources}


async def _check_log(
    settings: Settings, request: RebuildRequest, report: RebuildReport, progress: Progress, spans: Spans
) -> Builders:
    """Find the requested tasks and their sessions' builders. Raises InputError if a builder writes the output."""
    builders: Builders = {}
    topic = completions.TOPIC.full_name(settings.namespace)
    for partition in spans:
        async with aclosing(read_back(settings, topic, partition)) as records:
            async for record in records:
                progress.checked(partition, record.offset)
                task_id = task_of(record)
                is_requested = request.includes(task_id)
                known = completions.CODEC.known(record.value)
                if is_requested and known is None:
                    report.unreadable += 1
                elif is_requested:
                    report.tasks.add(task_id)
                match known:
                    case Build(output=output) | CloseGroup(output=output) as live if output == request.into:
                        reason = f"it is the output of task {live.task_id}, which the builder writes; name another"
                        raise InputError("--into", request.into, reason)
                    case Build() as build if request.builder is None and is_requested:
                        builders[build.session_id] = build.builder, build.builder_config
    return builders


async def _make_output(settings: Settings, request: RebuildRequest, builders: Builders, spans: Spans) -> None:
    """Create the output topic. Raises InputError, before anything is written, if it holds sessions built otherwise."""
    await admin.apply(settings, [trajectories.topic(request.into)], embedded=settings.replication == 1)
    for partition in spans:
        output = await read_output(settings, request, partition)
        for session_id in builders.keys() & output.built.keys():
            output.check_builder(session_id, builders[session_id], request.into)
