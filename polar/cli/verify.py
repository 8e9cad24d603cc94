"""`polar verify` scores finished traces again at the engines that sampled them, and says how far the recorded logprobs lie from that."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli import engine_settings, process, progress
from polar.cli.exits import Exit
from polar.cli.options import Data, EngineKeyFile, Format, Model, OnlyRun, Output, checked_run
from polar.cli.output import counted, note, print_json, show
from polar.cli.trajectories import READ_S, require_output
from topics.environment import settings
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError
from topics.types.trajectory import Trajectory
from topics.waiting.first_done import first_done

if TYPE_CHECKING:
    from polar.verification.report import EngineReport, Report, TraceFound
    from polar.verification.run import Verifier

NAMED = 10
"""Most traces over the limit that are named on stderr."""
COLUMNS = ["engine", ">traces", ">tokens", ">median", ">p99", ">max", ">over", "worst trace"]
PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s?%")


def verify(
    task: Annotated[list[str] | None, typer.Argument(metavar="[TASK]…", help="Only these tasks.")] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="P%", help="Only this share of the sessions, always the same ones.")
    ] = None,
    run: OnlyRun = None,
    topic: Annotated[
        str | None,
        typer.Option(metavar="T", help="`eval`, or a task's output_topic. Default: the trajectories for training."),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, metavar="N", help="At most the newest N of these sessions.")] = 200,
    engine_urls: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="URL",
            help="Server of the engine `default`, with or without /v1. Repeatable. Default: [engines] of polar.toml.",
        ),
    ] = None,
    model: Model = None,
    engine_key_file: EngineKeyFile = None,
    limit: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="NATS",
            help="Fail if more than 1 of 100 tokens of an engine, or a call on average, differs by more. The default is for bfloat16; "
            "float32: 1e-3.",
        ),
    ] = 0.1,
    concurrency: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Prompts scored at a time.")] = 4,
    longest: Annotated[
        int, typer.Option("--max-tokens", min=2, metavar="N", help="Score a trace up to this token.")
    ] = 32_768,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Score finished traces again at their engines, and compare with the recorded logprobs.

    Each result is a record of polar.verifications, and a row of the view `verifications`. Ctrl-C ends it with what was scored so far.
    """
    from polar.verification.run import Options, Verifier
    from topics import trajectories

    if not task and sample is None and run is None:
        raise InputError("TASK", None, "name tasks, or choose sessions with --sample 1% or --run NAME")
    wanted = _Wanted(frozenset(task or ()), _share(sample), checked_run(run))
    found = settings.load(data)
    name = trajectories.output_named(topic, found.namespace)
    engines = engine_settings.chosen(found, engine_urls or [], model, "chat", engine_key_file)
    options = Options(limit=limit, concurrency=concurrency, longest=longest, output=name)
    verifier = Verifier(found, engines, options)
    process.serve(lambda stop: _verify(found, verifier, name, wanted, sessions, stop))
    result = verifier.report
    if output is Format.JSON:
        print_json(_document(result))
    else:
        show(COLUMNS, [_row(engine, each) for engine, each in sorted(result.engines.items())])
    _print_problems(result)
    if not (result.is_faithful or result.is_outdated) or result.unrecorded or result.remaining:
        raise typer.Exit(Exit.FAILED)


@dataclass(frozen=True)
class _Wanted:
    """Which sessions are verified."""

    tasks: frozenset[str]
    """Empty: all."""
    share: float
    run: str | None
    """None: all."""

    def __call__(self, trajectory: Trajectory) -> bool:
        drawn = int.from_bytes(hashlib.sha256(trajectory.session_id.encode()).digest()[:8], "big") / 2**64
        return (
            (not self.tasks or trajectory.task_id in self.tasks)
            and self.run in (None, trajectory.run)
            and drawn < self.share
        )


def _share(sample: str | None) -> float:
    """The share of sessions. Raises InputError."""
    if sample is None:
        return 1.0
    match = PERCENT.fullmatch(sample)
    if match is None or not 0.0 < float(match[1]) <= 100.0:
        raise InputError("--sample", sample, "expected a percentage above 0 and up to 100, like 1% or 0.5%")
    return float(match[1]) / 100


async def _verify(
    found: Settings,
    verifier: Verifier,
    output: str | None,
    wanted: _Wanted,
    sessions: int,
    stop: asyncio.Event,
) -> None:
    """Verify the wanted sessions of an output topic, or as many of them as are done before `stop`."""
    reading = _read(found, output, wanted, sessions)
    chosen = (await first_done(stop, reading)).get(reading)
    if chosen is None:
        return
    newest, count = chosen
    if not newest:
        raise NotReadyError("no finished session is among those that you chose; `polar trajectories` lists them")
    if count > len(newest):
        note(f"only the newest {len(newest)} of {count} sessions are verified; --sessions sets how many")
    try:
        await verifier.start()
        with progress.bar("verifying traces") as bar:
            await verifier.run(newest, stop, bar)
    finally:
        await verifier.close()


async def _read(
    found: Settings, output: str | None, wanted: _Wanted, sessions: int
) -> tuple[Sequence[Trajectory], int]:
    """The newest of the wanted sessions that have traces, and the number of all of them."""
    from polar.table import require_topic
    from topics import trajectories
    from topics.log import kafka
    from topics.log.follow import Follower, Since

    await require_topic(found, trajectories.TOPIC)
    if output is not None:
        await require_output(found, output)
    newest: list[tuple[int, int, int, Trajectory]] = []
    """A heap by time, partition and offset, as partitions are read in any order."""
    count = 0

    def on_record(record: object, envelope: kafka.Record) -> None:
        nonlocal count
        if isinstance(record, Trajectory) and record.traces and wanted(record):
            count += 1
            entry = (envelope.timestamp, envelope.partition, envelope.offset, record)
            (heapq.heappush if len(newest) < sessions else heapq.heappushpop)(newest, entry)

    follower = Follower(found, trajectories.topic(output), on_record, since=Since.BEGINNING, committed=True)
    await progress.reading(follower.start(READ_S), lambda: follower.progress, "trajectories")
    await follower.stop()
    return [trajectory for *_, trajectory in sorted(newest)], count


def _row(engine: str, report: EngineReport) -> list[object]:
    agreement, worst = report.agreement, report.worst
    figures: list[object] = [None] * 3
    if agreement is not None:
        figures = [*map(_nats, (agreement.median, agreement.p99, agreement.largest))]
    tokens = 0 if agreement is None else agreement.tokens
    name = None if worst is None else f"{worst.trace_id} (p99 {_nats(worst.p99)}, max {_nats(worst.largest)})"
    return [engine, report.traces, tokens, *figures, len(report.over), name]


def _nats(value: float) -> str:
    return f"{value:.1e}"


def _print_problems(report: Report) -> None:
    """Print on stderr what wasn't scored and what is over the limit."""
    for engine, each in sorted(report.engines.items()):
        if each.unscored:
            note(f"{engine}: not scored: {counted(dict(each.unscored))} tokens (docs/vllm.md lists the reasons)")
        worst = _worst_first(each.over)
        for trace in worst[:NAMED]:
            call = trace.calls[0]
            note(
                f"{engine}: {trace.trace_id} is over the limit: p99 {_nats(trace.p99)}, max {_nats(trace.largest)}; most in the call "
                f"{call.call_id}: mean {_nats(call.mean)}, p99 {_nats(call.p99)}"
            )
        if len(worst) > NAMED:
            note(f"{engine}: … and {len(worst) - NAMED} more traces are over the limit; --format json has all")
        over = []
        if each.agreement is not None and each.agreement.p99 > report.limit:
            over.append(f"p99 {_nats(each.agreement.p99)}")
        if mismatches := each.mismatches(report.limit):
            over.append(f"the mean of {mismatches} of its calls")
        if over:
            note(
                f"{engine}: {' and '.join(over)} is over the limit of {_nats(report.limit)}: other weights, another model or other prompts "
                "than the log says (docs/vllm.md)"
            )
    if report.is_outdated:
        note(
            "no token could be scored, since the engines serve other weights now: verify sessions before the next update"
        )
    elif all(each.agreement is None for each in report.engines.values()):
        note("no token could be scored")
    if report.unrecorded:
        note(f"Kafka didn't acknowledge the results of {report.unrecorded} traces; run the command again")
    if report.remaining:
        note(f"stopped: {report.remaining} traces are not verified")


def _document(report: Report) -> dict[str, Any]:
    return {
        "limit": report.limit,
        "sessions": report.sessions,
        "faithful": report.is_faithful,
        "outdated": report.is_outdated,
        "remaining_traces": report.remaining,
        "unrecorded_traces": report.unrecorded,
        "engines": {name: _engine_document(each) for name, each in sorted(report.engines.items())},
    }


def _engine_document(report: EngineReport) -> dict[str, Any]:
    agreement = report.agreement
    return {
        "traces": report.traces,
        "tokens": 0 if agreement is None else agreement.tokens,
        "mean": None if agreement is None else agreement.mean,
        "median": None if agreement is None else agreement.median,
        "p99": None if agreement is None else agreement.p99,
        "max": None if agreement is None else agreement.largest,
        "worst_trace": None if report.worst is None else asdict(report.worst),
        "traces_over": [asdict(trace) for trace in _worst_first(report.over)],
        "unscored": dict(report.unscored),
    }


def _worst_first(traces: Sequence[TraceFound]) -> list[TraceFound]:
    return sorted(traces, key=lambda trace: trace.rank, reverse=True)
