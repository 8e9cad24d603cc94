"""`polar doctor` on this machine as it is, on one that lacks things, and on a running system."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from consumers.harnesses import manifest
from consumers.harnesses.pi import Pi
from polar import host_agreement
from polar.cli.app import app
from polar.doctor import system
from polar.doctor.engine import inference
from polar.doctor.finding import Finding, State
from polar.doctor.host import harnesses, installed, machine
from polar.embedded import disk
from polar.scripted.app import running
from polar.scripted.engine import Engine
from polar.scripted.faults import Garbage
from tests.analytics.known_run import known_run
from tests.analytics.story import write
from tests.polar.cli.commands import Write
from topics import completions, events, workers
from topics.contract import catalogue
from topics.contract.codec import encode
from topics.environment import cache, claim_keys
from topics.environment.keys import ensure_keys_file
from topics.environment.settings import Settings
from topics.events import Claimed
from topics.log import admin
from topics.log import kafka as log_kafka
from topics.log.producer import LogProducer
from topics.types.session import Stage
from topics.workers import Heartbeat

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def _no_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POLAR_KAFKA", raising=False)
    # No test waits for a heartbeat in vain for longer.
    monkeypatch.setattr(system, "BEATS_S", 0.1)
    monkeypatch.setattr(host_agreement, "BEAT_S", 2.0)
    monkeypatch.setenv("POLAR_DATA", str(tmp_path / "data"))
    # Kafka is there, and no CLI: to verify all that a machine has takes seconds.
    kafka = list(cache.root().glob("kafka-*"))
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    for entry in kafka:
        (tmp_path / "cache" / entry.name).symlink_to(entry)


def states(*arguments: str) -> tuple[int, dict[str, str]]:
    """Exit code, and state by what was looked at."""
    result = CliRunner().invoke(app, ["doctor", "--format", "json", *arguments])
    return result.exit_code, {one["what"]: one["state"] for one in json.loads(result.stdout)}


def test_a_machine_that_runs_the_tests_is_well_and_nothing_is_made_on_it(tmp_path: Path) -> None:
    code, found = states()
    assert code == 0
    assert {"python", "kernel", "memory", "disk", "data folder", "git", "packages", "java", "Kafka", "pi"} < set(found)
    assert (found["Kafka"], found["pi"], found["system"]) == ("good", "later", "later")
    assert not (tmp_path / "data").exists()


def test_it_says_that_images_need_skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states()[1]["images"] == "good"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert states()[1]["images"] == "later"


def test_it_says_what_each_runtime_does_not_enforce() -> None:
    found = {one.what: one.said for one in machine(Path())}
    assert "unix_sockets" in found["runtime landlock"]
    assert "host_files" not in found["runtime landlock"]
    assert "host_files" in found["runtime process"]
    assert "host_files" not in found["runtime cell"]


def test_people_get_a_table_and_what_to_do() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert "✓ kernel" in " ".join(result.stdout.split())
    assert result.stdout.splitlines()[-1] == "– system: start it: polar up"


def test_what_is_missing_ends_with_3_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "NEEDED", 2**62)
    monkeypatch.setenv("PATH", "")
    code, found = states()
    assert code == 3
    assert (found["disk"], found["git"]) == ("bad", "bad")
    assert all(one.todo for one in machine(Path()) if one.state is State.BAD)


def test_downloads_that_cannot_come_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "empty"))
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    found = {one.what: one for one in installed()}
    assert found["Kafka"].state is State.BAD
    assert "can't be reached" in found["Kafka"].said
    assert found["pi"].state is State.BAD


def test_a_harness_with_a_changed_file_is_bad_and_the_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path))
    program = Pi.cli.folder / "node_modules" / Pi.cli.program
    program.parent.mkdir(parents=True)
    program.write_text("good")
    manifest.seal(Pi.cli.folder, Pi.cli.manifest)
    program.chmod(0o644)
    program.write_text("evil")
    program.chmod(0o444)
    found = next(one for one in harnesses() if one.what == "pi")
    assert found.state is State.BAD
    assert f"{program} was changed after its installation" in found.said
    assert "python -m consumers.harnesses.install pi" in (found.todo or "")


def test_a_package_index_is_asked_for_its_first_line_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole index of PyPI is tens of MB, and may take longer than a checkup waits."""
    asked: list[str] = []

    class Index(BaseHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            asked.append(self.requestline)

        def do_HEAD(self) -> None:
            self.send_response(308)
            self.send_header("Location", "/simple/")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "empty"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        found = {one.what: one for one in installed()}
        server.shutdown()
    assert found["mini_swe_agent"].state is State.LATER
    assert asked == ["HEAD /simple HTTP/1.1"]


def test_a_kafka_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    code, found = states()
    assert code == 3
    assert found["broker"] == "bad"


async def test_calls_that_are_kept_for_less_than_a_session_are_reported(kafka: str, namespace: str) -> None:
    settings = Settings(kafka=kafka, namespace=namespace, replication=1, min_insync=1)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    name = completions.TOPIC.full_name(namespace)
    client = log_kafka.admin(settings)
    await client.start()
    try:
        carried = completions.TOPIC.broker_config(1) | {"retention.ms": "5400000"}
        await client.alter_configs([log_kafka.topic_config(name, carried)])
    finally:
        await client.close()

    async def topics() -> Finding:
        return {finding.what: finding for finding in await system.system(settings)}["topics"]

    while (found := await topics()).state is State.GOOD:  # the brokers learn it from the controller
        await asyncio.sleep(0.05)
    assert f"{name} keeps calls for 1.5 h instead of 168 h" in found.said
    assert found.todo == "set it back: polar topics apply"
    applied = await admin.apply(settings, catalogue.FIXED, embedded=True)
    assert [each.topic for each in applied if each.outcome == "altered"] == [name]
    assert (await topics()).state is State.GOOD


async def test_a_broker_without_topics_is_told(kafka: str, namespace: str) -> None:
    found = {one.what: one for one in await system.system(Settings(kafka=kafka, namespace=namespace))}
    assert found["broker"].state is State.GOOD
    assert found["topics"].state is State.BAD
    assert found["topics"].todo == "make them: polar topics apply"


async def test_a_keys_file_that_is_missing_or_no_keys_file_is_told(kafka: str, namespace: str, tmp_path: Path) -> None:
    settings = Settings(kafka=kafka, namespace=namespace, keys_file=tmp_path / "keys.json")

    async def found() -> Finding:
        return {one.what: one for one in await system.system(settings)}["keys"]

    missing = await found()
    assert missing.state is State.LATER
    assert "coordinators, run workers and proxies don't start on this host" in missing.said
    ensure_keys_file(settings.keys_path)
    assert (await found()).state is State.GOOD
    settings.keys_path.write_text("{}")
    assert (await found()).state is State.BAD


async def test_the_lake_is_looked_for_where_the_settings_say(
    kafka: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(kafka=kafka, namespace=namespace, data=tmp_path)

    async def found(settings: Settings) -> Finding:
        return {one.what: one for one in await system.system(settings)}["lake"]

    missing = await found(settings)
    assert (missing.state, missing.said) == (
        State.LATER,
        f"no lake in {settings.lake_folder} yet, or it is on another host",
    )
    write(settings.lake_folder, known_run())
    assert (await found(settings)).state is State.GOOD
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    gone = await found(Settings(kafka=kafka, namespace=namespace, data=tmp_path, lake="s3://bucket/lakes"))
    assert gone.state is State.BAD
    assert "s3://bucket/lakes" in gone.said
    assert "POLAR_LAKE" in (gone.todo or "")


def test_a_host_without_the_packages_of_the_lake_is_checked_too() -> None:
    program = """
import sys
sys.modules["pyarrow"] = sys.modules["duckdb"] = None
from polar.doctor import system
from topics.environment.settings import Settings
found = system._lake(Settings())
print(found.state.value, found.todo)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "later to query it here: in a clone of Polar, pip install '.[analytics]'\n"


async def findings(settings: Settings, *records: Write) -> dict[str, Finding]:
    """The findings on a system with these records, whose last heartbeat comes while the doctor looks."""
    producer = LogProducer(settings)
    await producer.start()

    async def beat() -> None:
        while True:
            sent = Heartbeat("w", "coordinator", "host", 1)
            await producer.send(workers.TOPIC, sent, key="w", task_id="t")
            await asyncio.sleep(0.2)

    for topic, key, record in records:
        signed = claim_keys.headers(SIGNED_WITH, encode(record))
        await producer.send(topic, record, key=key, task_id="t", headers=signed)
    beating = asyncio.create_task(beat())
    try:
        return {one.what: one for one in await system.system(settings)}
    finally:
        beating.cancel()
        await producer.stop()


TICKET = claim_keys.ticket_id(5, 1)
CLAIMED = Claimed("f", "t.0", 1, Stage.RUN, claim_keys.new_claim_id(Stage.RUN, TICKET), "w")
SECRET = b"s" * 32
SIGNED_WITH = claim_keys.derived(SECRET, "t.0", 1, Stage.RUN, TICKET)


async def test_the_keys_file_is_compared_with_the_one_that_workers_use(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    keys_file = tmp_path / "keys.json"
    settings = Settings(kafka=kafka, namespace=namespace, replication=1, min_insync=1, keys_file=keys_file)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    keys_file.write_text(json.dumps({"k": SECRET.decode()}))
    same = (await findings(settings, (events.TOPIC, "t.0", CLAIMED)))["keys"]
    assert (same.state, same.said) == (State.GOOD, f"a signing secret in {keys_file}, which workers use as well")
    keys_file.write_text(json.dumps({"k": "another" * 5}))
    other = (await findings(settings))["keys"]
    assert other.state is State.BAD
    assert f"{keys_file} isn't the file that workers use: none of the 1 signed facts" in other.said
    assert "POLAR_KEYS_FILE" in (other.todo or "")


async def test_the_clock_is_compared_with_the_brokers(
    kafka: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's clock is set here, as a host's would be."""
    settings = Settings(kafka=kafka, namespace=namespace, replication=1, min_insync=1)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    assert (await findings(settings))["clock"].state is State.GOOD
    now = time.time
    monkeypatch.setattr("polar.host_agreement.time.time", lambda: now() + 3600)
    ahead = (await findings(settings))["clock"]
    assert (ahead.state, ahead.said) == (State.BAD, "3600 s ahead of Kafka's")
    assert "NTP" in (ahead.todo or "")


async def test_an_engine_is_asked_for_a_token() -> None:
    scripted = Engine()
    async with running(scripted) as url:
        assert [one.state for one in await inference(url, None)] == [State.GOOD]
        scripted.faults.add(Garbage(form="no_token_ids"))
        [lacking] = await inference(f"{url}/v1", None)
    assert lacking.state is State.BAD
    assert "returns no token ids" in lacking.said
    assert [one.state for one in await inference("http://127.0.0.1:9", None)] == [State.BAD]
