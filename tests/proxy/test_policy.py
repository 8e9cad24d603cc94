"""Whose word on an answer's weights stands."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from proxy.chat import Answer, Doubt, Message, Usage
from proxy.engine_processes import EngineProcesses
from proxy.engines.process import Process
from proxy.fleet import EngineCall, Fleet
from proxy.metrics import ProxyMetrics
from proxy.policy import VersionAttribution
from topics.fleet import EngineProcess, FleetView
from topics.types.completion import PolicySpan

SAMPLED = Answer(Message("assistant", "hi"), "stop", Usage(1, 2), b"\1\0\0\0", b"\2\0\0\0" * 2, b"\0" * 8, "m")
SPANS = (PolicySpan(8, 0, 1), PolicySpan(9, 1, 2))
LATE = {"policy_version": 4, "policy_doubt": "late"}
"""Named after sampling: weights that changed within the answer would be named for all of it."""
URL, OTHER = "http://one:8000", "http://two:8000"
PUBLISHED_MS = 1_000_000
"""When the version of offset 0 was published; those after it came a second apart."""
BEFORE = Process(URL, PUBLISHED_MS - 40_000)
AFTER = Process(URL, PUBLISHED_MS + 40_000)
SILENT = Process(URL, None)


class Sampled:
    """A proxy's knowledge, and what it makes of calls."""

    def __init__(self, *published: int | None) -> None:
        self.metrics = ProxyMetrics()
        self.written: list[EngineProcess] = []
        self.processes = EngineProcesses({"default": [URL, OTHER], "other": [URL]}, self.written.append)
        self.fleet = Fleet(lambda: None)
        self.attribution = VersionAttribution(self.processes, self.metrics)
        self._view = FleetView()
        self._offset = 0
        for version in published:
            self.publish(version)

    def publish(self, version: int | None) -> None:
        record = self._view.publishing(version)
        self._view.take(record, offset=self._offset)
        self.fleet.apply(record, self._offset, PUBLISHED_MS + 1000 * self._offset)
        self._offset += 1

    async def call(
        self,
        process: Process | None,
        *meanwhile: int | None,
        engine: str = "default",
        **reported: Any,
    ) -> Answer:
        """An answer during which these versions were published, as the log records it."""
        call: EngineCall = self.fleet.call(engine)
        async with call:
            for version in meanwhile:
                self.publish(version)
            call.process = process
        if process is not None:
            self.processes.found(engine, process)
        return self.attribution.attribute(engine, replace(SAMPLED, **reported), call)

    async def version(self, process: Process | None, **reported: Any) -> tuple[int | None, int | None]:
        """Version and publication of a call."""
        answer = await self.call(process, **reported)
        return answer.policy_version, answer.publication

    def doubts(self) -> dict[str, int]:
        counts = {reason: int(self.metrics.doubted.labels(reason)._value.get()) for reason in get_args(Doubt)}
        return {reason: count for reason, count in counts.items() if count}


@pytest.mark.parametrize(
    ("reported", "fleet", "version", "spans", "doubt"),
    [
        ({}, 7, 7, (), None),
        ({"policy_version": 8}, 7, 8, (), None),
        ({"policy_version": 8, "policy_spans": SPANS}, 7, 8, SPANS, None),
        ({"policy_version": 8, "policy_spans": SPANS[:1]}, 7, None, (), "gaps"),
        ({"policy_doubt": "not_ours"}, 7, 7, (), "not_ours"),
        ({"policy_doubt": "mixed"}, 7, None, (), "mixed"),
        ({"policy_doubt": "gaps"}, 7, None, (), "gaps"),
        (LATE, 4, 4, (), None),
        (LATE, 3, None, (), "late"),
        (LATE, None, None, (), "late"),
    ],
    ids=str,
)
async def test_what_an_engine_proves_goes_before_what_the_fleet_proves(
    reported: dict[str, Any], fleet: int | None, version: int | None, spans: tuple[PolicySpan, ...], doubt: str | None
) -> None:
    sampled = Sampled(fleet)
    told = await sampled.call(SILENT, **reported)
    assert (told.policy_version, told.policy_spans) == (version, spans)
    assert told.publication == (0 if version is not None and version == fleet else None)
    assert sampled.doubts() == ({} if doubt is None else {doubt: 1})


@pytest.mark.parametrize(
    ("before", "meanwhile", "named", "publications"),
    [
        # A number that is used twice is two: what was current before the call cannot have sampled it.
        ((5, 6, 5), (), (5, 5), (2, 2)),
        # A server that missed the rollback still serves the older weights of this number.
        ((5, 6, 5, 6), (), (6, 6), (None, None)),
        ((5, 6, 5), (6,), (5, 6), (2, None)),
        # Named before it is published, or after the update that all other servers had.
        ((5, 6, 5), (), (5, 6), (2, None)),
        ((5, 6), (), (5, 5), (None, None)),
        # The number was used again during the call.
        ((5, 6), (5, 6), (6, 5), (None, 2)),
        ((5,), (5,), (5, 5), (None, None)),
        ((), (), (5, 6), (None, None)),
    ],
    ids=str,
)
async def test_weights_that_an_engine_names_were_published_once_during_the_call_or_nobody_knows_when(
    before: tuple[int, ...],
    meanwhile: tuple[int, ...],
    named: tuple[int, int],
    publications: tuple[int | None, int | None],
) -> None:
    spans = (PolicySpan(named[0], 0, 1), PolicySpan(named[1], 1, 2))
    told = await Sampled(*before).call(SILENT, *meanwhile, policy_version=named[0], policy_spans=spans)
    assert (told.policy_version, told.publication) == (named[0], publications[0])
    assert [(span.version, span.publication) for span in told.policy_spans] == [*zip(named, publications, strict=True)]


@pytest.mark.parametrize(
    ("process", "publication"),
    [
        (BEFORE, None),
        (AFTER, 3),  # it got its weights after its start, when only the newer ones were published
        (SILENT, None),
        (None, None),
    ],
    ids=str,
)
async def test_a_number_that_was_used_again_names_the_newer_weights_only_on_a_server_started_since(
    process: Process | None, publication: int | None
) -> None:
    assert await Sampled(5, 6, 5, 6).version(process, policy_version=6) == (6, publication)


async def test_a_server_whose_clock_is_ahead_is_not_taken_for_one_started_since() -> None:
    sampled = Sampled(5, 6)
    sampled.processes.read(EngineProcess("default", URL, AFTER.started_ms), 0)
    sampled.publish(5)
    sampled.publish(6)
    assert await sampled.version(AFTER, policy_version=6) == (6, None)


async def test_after_a_rollback_an_unnamed_number_is_that_of_the_newer_publication() -> None:
    sampled = Sampled(5, 6)
    assert await sampled.version(SILENT) == (6, 1)
    sampled.publish(5)
    sampled.publish(6)
    assert await sampled.version(SILENT) == (6, 3)
    assert (await sampled.call(SILENT, 6)).publication is None
    sampled.publish(None)
    assert await sampled.version(SILENT) == (None, None)


async def test_a_server_that_names_no_version_any_more_was_started_anew() -> None:
    """Of weights that never had a version for a name the fleet's word stands; of these nobody's does."""
    sampled = Sampled(7)
    assert await sampled.version(SILENT, policy_doubt="not_ours") == (7, 0)
    assert await sampled.version(SILENT, policy_version=7) == (7, 0)
    assert await sampled.version(SILENT, policy_doubt="not_ours") == (None, None)
    assert await sampled.version(SILENT, engine="other", policy_doubt="not_ours") == (7, 0), "its names are its own"
    assert (await sampled.call(SILENT, 8, policy_version=8)).publication == 1
    assert sampled.written == [EngineProcess("default", URL, names_weights=True)], "once"


@pytest.mark.parametrize("reported", [{}, {"policy_doubt": "not_ours"}], ids=["silent", "not ours"])
async def test_a_server_that_was_started_after_the_publication_serves_other_weights_until_the_next(
    reported: dict[str, Any],
) -> None:
    sampled = Sampled(7)
    assert await sampled.version(BEFORE, **reported) == (7, 0)
    assert await sampled.version(AFTER, **reported) == (None, None)
    assert await sampled.version(AFTER, **reported) == (None, None)
    assert sampled.doubts() == {"restarted": 2} | ({"not_ours": 3} if reported else {})
    while sampled.fleet.weights("default").publication.written_ms < AFTER.started_ms:  # type: ignore[union-attr,operator]
        sampled.publish(7)
    version, publication = await sampled.version(AFTER, **reported)
    assert (version, publication) == (7, 40)


async def test_before_any_publication_and_after_a_failed_update_there_is_nothing_to_doubt() -> None:
    sampled = Sampled()
    assert await sampled.version(AFTER) == (None, None)
    sampled.publish(None)
    assert await sampled.version(AFTER) == (None, None)
    assert sampled.doubts() == {}


async def test_a_server_whose_start_cannot_be_read_now_proves_nothing() -> None:
    sampled = Sampled(7)
    assert await sampled.version(None) == (None, None)
    assert await sampled.version(None, policy_version=7) == (7, 0), "its own word stands"
    assert sampled.doubts() == {"restarted": 1}


async def test_server_and_proxy_started_again_together_give_no_version() -> None:
    """A second proxy that reads what the first wrote; without that it would take the engine for one that never names its weights."""
    first = Sampled(7)
    for process in (BEFORE, Process(OTHER, 5)):
        assert await first.version(process, policy_version=7) == (7, 0)
    second = Sampled(7)
    for offset, record in enumerate(first.written, 10):
        second.processes.read(record, offset)
    assert await second.version(AFTER, policy_doubt="not_ours") == (None, None), "the other server names its weights"
    assert second.doubts() == {"not_ours": 1}


async def test_where_starts_are_unknown_an_engine_that_named_its_weights_is_remembered_all_the_same() -> None:
    first = Sampled(7)
    assert await first.version(SILENT, policy_version=7) == (7, 0)
    second = Sampled(7)
    second.processes.read(first.written[0], 10)
    assert await second.version(SILENT, policy_doubt="not_ours") == (None, None)
    assert await second.version(SILENT, policy_version=7) == (7, 0)
