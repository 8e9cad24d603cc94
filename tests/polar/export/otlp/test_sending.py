"""`polar export otlp` over a lake, to a receiver that parses real OTLP: what arrives, what a failure costs, and a kill in the middle."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from polar.cli import app
from polar.cli.exits import Exit
from polar.export.otlp import portions
from polar.export.otlp import run as sending
from polar.export.otlp.backend import Backend, RefusedError
from polar.export.otlp.position import Position, Reached, load, save
from polar.export.otlp.run import BATCH_SPANS, Export
from polar.export.sessions import Selection
from tests.polar.export.otlp.lake import ACCOUNTING, emitted, facts, write_facts
from tests.polar.export.otlp.receiver import Receiver, attributes, receiving
from tests.polar.export.talks import NOON, turns, write
from tests.waiting import eventually, until
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.waiting.backoff import Backoff

OPTIONS = ("export", "otlp")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick failures: the exporter's own retries end after a second."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two sessions of the run `night`, the first with the facts of its stages, and one of no run."""
    folder = tmp_path / "data"
    settings = Settings(data=folder)
    first = turns("a.0", reward=1.0, num_samples=2, run="night", accounting=ACCOUNTING)
    write(settings, [first, turns("a.1", reward=0.0, run="night", first=200), turns("b.0", first=300)])
    times = [NOON - 1000, NOON + 9500, NOON + 13_000, NOON + 14_000]
    write_facts(settings, [*zip(facts("a.0"), times, strict=True), (emitted("a.1"), NOON), (emitted("b.0"), NOON)])
    return folder


def run(data: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app.app, [*OPTIONS, "--data", str(data), *map(str, arguments)])


def counts(receiver: Receiver) -> Counter[str]:
    """Arrivals of each span id."""
    return Counter(span.span_id.hex() for span in receiver.spans)


def test_sessions_arrive_as_traces(data: Path) -> None:
    with receiving() as receiver:
        done = run(data, "--endpoint", receiver.url, "--run", "night")
        assert done.exit_code == 0
        assert done.stdout == f"{receiver.url}/v1/traces: 2 sessions, 9 spans\n"
    assert set(receiver.paths) == {"/v1/traces"}
    first = [span for span in receiver.spans if span.trace_id == receiver.spans[0].trace_id]
    ids = {span.span_id: span.name for span in first}
    made = [
        (span.name, ids.get(span.parent_span_id), *(at / 1e9 - NOON / 1e3 for at in _times(span))) for span in first
    ]
    assert made == [
        ("invoke_agent shell", None, -3, 13),
        ("init", "invoke_agent shell", -3, -1),
        ("run", "invoke_agent shell", -0.5, 9.5),
        ("evaluate", "invoke_agent shell", 10, 13),
        ("chat", "run", 0, 0.5),
        ("chat", "run", 1, 1.5),
    ]
    tokens = [attributes(span)["gen_ai.usage.input_tokens"] for span in first[4:]]
    assert tokens == [3, 8]
    (of_resource, *_) = receiver.requests[1].resource_spans
    resource = attributes(of_resource.resource)
    assert (resource["service.name"], resource["polar.namespace"]) == ("polar", "polar")
    assert of_resource.scope_spans[0].schema_url == "https://opentelemetry.io/schemas/1.41.1"
    assert "task 100" not in str(receiver.requests)


def _times(span: Any) -> tuple[int, int]:
    return span.start_time_unix_nano, span.end_time_unix_nano


def test_contents_are_sent_when_asked_for(data: Path) -> None:
    with receiving() as receiver:
        assert run(data, "--endpoint", receiver.url, "--contents").exit_code == 0
    assert "task 100" in str(receiver.requests)


def test_the_standard_variables_hold(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{receiver.url}/base")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "rollouts")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
        assert run(data).exit_code == 0
    assert set(receiver.paths) == {"/base/v1/traces"}
    assert receiver.headers[0]["authorization"] == "Basic abc"
    assert receiver.headers[0]["content-encoding"] == "gzip"
    resource = attributes(receiver.requests[1].resource_spans[0].resource)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("rollouts", "lab")


def test_a_position_continues_after_what_was_sent(data: Path, tmp_path: Path) -> None:
    position = tmp_path / "position"
    with receiving() as receiver:
        for _ in range(2):
            assert run(data, "--endpoint", receiver.url, "--position", position).exit_code == 0
        assert set(counts(receiver).values()) == {1}
        assert len(receiver.spans) == 12
        other = run(data, "--endpoint", receiver.url, "--position", position, "--run", "night")
        assert run(data, "--endpoint", receiver.url).exit_code == 0
    assert other.exit_code == Exit.BAD_INPUT
    assert "--position: is of another selection" in other.stderr
    # Without a position all are sent again, with the same ids.
    assert set(counts(receiver).values()) == {2}


@pytest.mark.parametrize(
    ("url", "why"),
    [("localhost:4318", "expected a URL"), ("ftp://host", "expected a URL"), ("http://u:secret@host", "no user")],
)
def test_an_endpoint_that_is_none_is_named(data: Path, url: str, why: str) -> None:
    done = run(data, "--endpoint", url)
    assert done.exit_code == Exit.BAD_INPUT
    assert "--endpoint: " in done.stderr
    assert why in done.stderr
    assert "secret" not in done.stderr


def test_another_protocol_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    done = run(data)
    assert done.exit_code == Exit.BAD_INPUT
    assert "OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf is sent" in done.stderr


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"status": 404}, "it answered 404 Not Found"),
        ({"status": 302}, "it answered 302 Found"),
        ({"status": 503}, "it answered 503 Service Unavailable"),
        ({"content_type": "text/html; charset=utf-8"}, "it answered with a web page"),
    ],
    ids=str,
)
def test_what_takes_no_spans_is_named_and_the_position_stays(
    data: Path, tmp_path: Path, answers: dict[str, Any], why: str
) -> None:
    position = tmp_path / "position"
    with receiving(**answers) as receiver:
        done = run(data, "--endpoint", receiver.url, "--position", position)
    assert done.exit_code == Exit.NOT_READY
    assert f"{receiver.url}/v1/traces didn't take the spans: {why}" in done.stderr
    assert not position.exists()
    with receiving() as receiver:
        assert run(data, "--endpoint", receiver.url, "--position", position).exit_code == 0
        assert len(receiver.spans) == 12


def test_spans_that_the_backend_rejects_are_reported(data: Path) -> None:
    with receiving(rejected=3) as receiver:
        done = run(data, "--endpoint", receiver.url, "--task", "b")
    # The empty request that tests the endpoint has the same answer.
    assert f"the backend rejected {3 * len(receiver.requests)} of the spans" in done.stderr


def test_a_batch_that_is_too_large_is_sent_in_smaller_ones(data: Path) -> None:
    with receiving(largest=2000) as receiver:
        done = run(data, "--endpoint", receiver.url)
    assert (done.exit_code, done.stdout) == (0, f"{receiver.url}/v1/traces: 3 sessions, 12 spans\n")
    assert set(counts(receiver).values()) == {1}
    assert len(receiver.spans) == 12


def test_a_span_that_is_too_large_names_its_session_and_loses_nothing(data: Path, tmp_path: Path) -> None:
    position = tmp_path / "position"
    with receiving(largest=300) as receiver:
        done = run(data, "--endpoint", receiver.url, "--position", position, "--run", "night")
    assert done.exit_code == Exit.NOT_READY
    assert "it answered 413" in done.stderr
    assert "Their sessions are a.0, a.1; nothing is lost" in done.stderr
    with receiving() as receiver:
        assert run(data, "--endpoint", receiver.url, "--position", position, "--run", "night").exit_code == 0
        assert len(receiver.spans) == 9


@pytest.fixture
def export(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Receiver], Export]:
    """An export of all sessions to a receiver, with short pauses and requests of two spans."""
    monkeypatch.setattr(sending, "PAUSES", Backoff(0.01, 0.01))
    monkeypatch.setattr(sending, "LOOK_S", 0.01)
    monkeypatch.setattr(sending, "BATCH_SPANS", 2)
    return lambda receiver: Export(
        Settings(data=data), Selection(), Backend(receiver.url), tmp_path / "position", with_contents=False
    )


async def test_spans_that_are_refused_again_and_again_end_the_following_and_lose_nothing(
    export: Callable[[Receiver], Export],
) -> None:
    with receiving(spans_status=400) as receiver:
        with pytest.raises(RefusedError, match=r"400 Bad Request. Their sessions are a.0; nothing is lost"):
            await export(receiver).follow(asyncio.Event())
        assert len(receiver.paths) == 1 + sending.REFUSALS
        receiver.spans_status = 200
        export(receiver).send_all()
        assert len(receiver.spans) == 12


async def test_following_goes_on_after_fewer_refusals_and_logs_what_was_rejected(
    export: Callable[[Receiver], Export], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "REFUSALS", 1_000_000)
    stop = asyncio.Event()
    with receiving(spans_status=404, rejected=1) as receiver, capture_logs() as logs:
        following = asyncio.create_task(export(receiver).follow(stop))
        await eventually(lambda: len(receiver.paths) > 3, 60)
        receiver.spans_status = 200
        await eventually(lambda: [line for line in logs if line.get("action") == "otlp.sent"], 60)
        stop.set()
        await following
    (sent,) = [line for line in logs if line.get("action") == "otlp.sent"]
    assert (sent["sessions"], sent["spans"], sent["rejected"]) == (3, 12, len(receiver.requests))


def test_a_stop_ends_a_portion_after_the_request_in_progress(export: Callable[[Receiver], Export]) -> None:
    with receiving() as receiver:
        export(receiver).send_all(lambda: receiver.batches == 2)
        assert len(receiver.spans) == 4
        export(receiver).send_all()
    # The portion wasn't complete, so its position hadn't moved.
    assert len(counts(receiver)) == 12


def test_following_needs_a_position(data: Path) -> None:
    done = run(data, "--follow")
    assert done.exit_code == Exit.BAD_INPUT
    assert "--position: --follow needs a file" in done.stderr


def test_a_session_waits_until_the_lake_has_all_its_records(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "WAIT_MS", 1 << 50)
    settings = Settings(data=data)
    late = turns("c.0", first=400)
    whole = late.trajectory()
    late.trajectory = lambda: whole  # type: ignore[method-assign]
    calls, late.calls = late.calls, []
    # The trajectory comes before its facts and its calls; offset 100 lies behind those of `data`.
    write(settings, [late], offset=100)
    position = tmp_path / "position"

    def sent(receiver: Receiver) -> set[str]:
        assert run(data, "--endpoint", receiver.url, "--position", position).exit_code == 0
        return {attributes(span)["gen_ai.conversation.id"] for span in receiver.spans}

    with receiving() as receiver:
        assert sent(receiver) == {"a.0", "a.1", "b.0"}
        write_facts(settings, [(emitted("c.0"), NOON)])
        assert sent(receiver) == {"a.0", "a.1", "b.0"}
        late.calls = calls
        write(settings, [late], offset=98, with_trajectories=False)
        assert sent(receiver) == {"a.0", "a.1", "b.0", "c.0"}
        assert set(counts(receiver).values()) == {1}


def test_a_topic_that_began_anew_is_read_from_its_beginning(data: Path, tmp_path: Path) -> None:
    position = tmp_path / "position"
    with receiving() as receiver:
        assert run(data, "--endpoint", receiver.url, "--position", position).exit_code == 0
        write(Settings(data=data), [turns("d.0", first=500)], logged_ms=NOON + 60_000)
        for _ in range(2):
            assert run(data, "--endpoint", receiver.url, "--position", position).exit_code == 0
    assert "d.0" in {attributes(span)["gen_ai.conversation.id"] for span in receiver.spans}
    assert set(counts(receiver).values()) == {1}


def test_a_position_of_another_lake_or_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "position"
    save(path, Position("one", "s", {0: Reached(5, 7)}))
    assert load(path, "one", "s").partitions == {0: Reached(5, 7)}
    with pytest.raises(InputError, match="of another Kafka cluster, one"):
        load(path, "two", "s")
    path.write_text("[]")
    with pytest.raises(InputError, match="isn't a position"):
        load(path, "one", "s")
    with pytest.raises(InputError, match="can't be written"):
        load(tmp_path / "nowhere" / "position", "one", "s")


def follow(data: Path, position: Path, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "polar.cli", *OPTIONS, "--follow", "--position", position, "--endpoint", url]
    return subprocess.Popen([*map(str, command), "--data", str(data)], stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> str:
    """What it printed, after a clean stop."""
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    return printed


@pytest.mark.contract
def test_after_a_kill_in_the_middle_nothing_is_missing_and_ids_are_the_same(tmp_path: Path) -> None:
    data, position = tmp_path / "data", tmp_path / "position"
    count = portions.PORTION_SESSIONS * 2 + 50
    write(Settings(data=data), [turns(f"t{n:03}.0", 2, first=10 * n) for n in range(count)])
    with receiving(silent_after=1) as receiver:
        process = follow(data, position, receiver.url)
        # One portion was taken; the next has arrived, without an answer.
        until(lambda: receiver.batches == 2, 30)
        process.kill()
        process.communicate()
        before = counts(receiver)
        receiver.silent_after = None
        receiver.release.set()
        process = follow(data, position, receiver.url)
        until(lambda: len(counts(receiver)) == 3 * count, 30)
        # New sessions come while it runs.
        write(Settings(data=data), [turns("z.0", first=9000)], offset=100_000)
        until(lambda: len(counts(receiver)) == 3 * count + 3, 30)
        end(process)
    after = counts(receiver)
    assert len(before) == 3 * 2 * portions.PORTION_SESSIONS < BATCH_SPANS * 2
    assert Counter(after.values()) == {1: len(after) - 300, 2: 300}
    twice = {span.span_id.hex() for span in receiver.spans if after[span.span_id.hex()] == 2}
    sent_twice: dict[bytes, object] = {}
    for span in receiver.spans:
        if span.span_id.hex() in twice:
            assert sent_twice.setdefault(span.span_id, span) == span


@pytest.mark.contract
def test_following_outlives_a_backend_that_is_away(data: Path, tmp_path: Path) -> None:
    with receiving() as gone:
        port = int(gone.url.rpartition(":")[2])
    process = follow(data, tmp_path / "position", gone.url)
    lines: list[str] = []
    assert process.stderr is not None
    reading = threading.Thread(target=lines.extend, args=(iter(process.stderr.readline, ""),))
    reading.start()
    until(lambda: any("otlp.failed" in line for line in lines), 30)
    assert process.poll() is None
    with receiving(port) as receiver:
        until(lambda: len(receiver.spans) == 12, 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    reading.join()
    process.stderr.close()
    assert set(counts(receiver).values()) == {1}
    assert any("no answer (ConnectionError)" in line for line in lines)


@pytest.mark.contract
def test_following_ends_at_an_endpoint_that_takes_no_spans(data: Path, tmp_path: Path) -> None:
    with receiving(status=401) as receiver:
        process = follow(data, tmp_path / "position", receiver.url)
        _, printed = process.communicate(timeout=30)
    assert process.returncode == Exit.NOT_READY
    assert "it answered 401 Unauthorized" in printed
