"""What proxies know of servers' processes, from what they found and from the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine_processes import EngineProcesses
from proxy.engines.process import Process, start_in
from topics.fleet import EngineProcess, Publication

URL = "http://one:8000"
FIRST, SECOND = Process(URL, 1000), Process(URL, 2000)


def known(*records: EngineProcess) -> tuple[EngineProcesses, list[EngineProcess]]:
    """A proxy that has read these records, at offsets from 0 on, and what it writes."""
    written: list[EngineProcess] = []
    made = EngineProcesses({"e": [URL]}, written.append)
    for offset, record in enumerate(records):
        made.read(record, offset)
    return made, written


def test_a_process_is_written_when_it_is_found_first_and_when_it_first_names_its_weights() -> None:
    made, written = known()
    for _ in range(3):
        made.found("e", FIRST)
    made.read(written[0], 4)
    for _ in range(3):
        made.named("e", FIRST)
        made.found("e", FIRST)
    assert written == [EngineProcess("e", URL, 1000), EngineProcess("e", URL, 1000, since=4, names_weights=True)]
    made.found("e", SECOND)
    assert written[2:] == [EngineProcess("e", URL, 2000)]
    assert not made.names_weights("e"), "the process that did is gone"


def test_what_the_log_knows_is_not_written_again() -> None:
    made, written = known(EngineProcess("e", URL, 1000, since=0, names_weights=True))
    made.found("e", FIRST)
    made.named("e", FIRST)
    assert not written
    assert made.names_weights("e")


def test_processes_that_take_turns_at_one_url_are_written_once_each() -> None:
    made, written = known()
    for process in (FIRST, SECOND) * 5:
        made.found("e", process)
        made.named("e", process)
    assert len(written) == 4


def test_restarts_need_no_memory_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.engine_processes.REMEMBERED", 10)
    made, written = known()
    for started_ms in range(100):
        made.found("e", Process(URL, started_ms))
    assert len(written) == 100
    assert len(made._written) <= 10


def test_a_server_that_is_no_longer_in_the_settings_has_no_say() -> None:
    made, _ = known(EngineProcess("e", "http://gone:8000", 1, names_weights=True))
    assert not made.names_weights("e")


def test_a_process_serves_what_was_published_after_its_record_or_by_the_clocks_after_its_start() -> None:
    ahead = Process(URL, 9000)
    made, _ = known(EngineProcess("e", "http://two:8000", 1), EngineProcess("e", URL, 9000))
    assert not made.serves("e", ahead, Publication(7, 0, 5000))
    assert made.serves("e", ahead, Publication(7, 2, 5000)), "its clock is ahead, and its record came before"
    assert made.serves("e", ahead, Publication(7, 0, 9000))
    assert not made.serves("e", Process(URL, 9001), Publication(7, 2, 5000)), "another process"
    assert made.serves("e", Process(URL, None), Publication(7, 0, 0)), "nobody knows when it was started"


RECORDS = st.builds(
    EngineProcess,
    st.just("e"),
    st.just(URL),
    st.sampled_from([1000, 2000]),
    st.none(),
    st.booleans(),
)


@given(st.lists(RECORDS, min_size=1, max_size=6), st.integers(0, 5))
def test_two_proxies_that_write_of_one_process_at_once_lose_nothing(records: list[EngineProcess], start: int) -> None:
    made, _ = known(*records)
    newest = records[-1].started_ms
    run = 0
    while run < len(records) and records[-1 - run].started_ms == newest:
        run += 1
    of_process = range(len(records) - run, len(records))
    assert made.names_weights("e") == any(records[at].names_weights for at in of_process)
    process = Process(URL, newest)
    assert made.serves("e", process, Publication(7, start, 0)) == (of_process[0] < start)


def test_the_start_is_read_from_metrics_as_prometheus_clients_write_them() -> None:
    metrics = (
        b"# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n"
        b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.79018353412e+09\nother 1.0\n"
    )
    assert start_in(metrics) == 1_790_183_534_120
    assert start_in(b'process_start_time_seconds{pod="a"} 1790183534\r\n') == 1_790_183_534_000
    for none in (b"", b"vllm_process_start_time_seconds 1\n", b"process_start_time_seconds NaN\n", b"<html>"):
        assert start_in(none) is None
    for broken in (b"process_start_time_seconds 1e\n", b"process_start_time_seconds 1e999\n"):
        assert start_in(broken) is None
