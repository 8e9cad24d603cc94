"""`polar watch` as a process, on a pipe and on a terminal, against a real Kafka.

What workers and a coordinator would write is written here.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen

from analytics.live.fold import AttemptError, Calls, Snapshot, StageLoad
from analytics.live.session_counts import Group
from analytics.live.view import Live
from polar.cli.screen import Page, in_words, summary
from polar.embedded import Broker
from tests.polar.cli.commands import Write, polar, rows, write
from tests.polar.cli.terminal import Terminal
from tests.polar.show.recording import TASK
from topics import completions, fleet, workers
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.fleet import FleetState
from topics.log import admin
from topics.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.errors import Kind, NotReadyError, SessionError
from topics.types.session import Phase, SessionState, Stage, Status
from topics.types.tokens import pack_ids
from topics.workers import Heartbeat, StageSlots

pytestmark = pytest.mark.contract

DEADLINE_S = 30.0
EVIL = "\x1b]0;title\x07\x1b[2J[red]gone[/red]\r\n漢字漢字漢字 " + "x" * 200


# --- the page


text = st.text(max_size=30)
loads = st.builds(StageLoad, st.sampled_from(Stage), text, *(st.integers(0, 10_000) for _ in range(6)))
groups = st.builds(
    Group,
    text,
    st.integers(0, 1024),
    st.integers(0, 1024),
    st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=40),
    st.none() | st.floats(-1, 1),
    st.none() | st.floats(0, 1),
    st.just(0),
)
troubles = st.builds(AttemptError, text, st.integers(1, 3), text, text, text, text, st.integers(0, 2_000_000_000_000))
snapshots = st.builds(
    Snapshot,
    at=st.integers(0, 2_000_000_000_000),
    processes=st.dictionaries(st.sampled_from(["worker", "proxy", "builder"]), st.integers(1, 999)),
    paused=st.booleans(),
    policy_version=st.none() | st.integers(0, 10**9),
    stages=st.lists(loads, max_size=4),
    calls=st.builds(Calls, *(st.integers(0, 10**9) for _ in range(4))),
    ended=st.integers(0, 10**9),
    trainable_tokens=st.integers(0, 10**9),
    tasks=st.integers(0, 10**6),
    phases=st.dictionaries(st.sampled_from([phase.value for phase in Phase]), st.integers(1, 10**6)),
    statuses=st.dictionaries(st.sampled_from([status.value for status in Status]), st.integers(1, 10**6)),
    groups=st.lists(groups, max_size=5),
    errors=st.lists(troubles, max_size=5),
    away_s=st.none() | st.floats(0, 1e6),
    reading=st.none() | st.floats(0, 1),
    paused_since=st.none() | st.integers(0, 2_000_000_000_000),
    draining=st.booleans(),
    fleet_generation=st.integers(0, 10**9),
)


@settings_of_hypothesis(max_examples=60, deadline=None)
@given(snapshots, st.integers(1, 200), st.integers(1, 60))
def test_a_page_is_as_wide_and_high_as_the_terminal_and_steers_nothing(
    snapshot: Snapshot, width: int, height: int
) -> None:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    page = Page(snapshot, "polar watch")
    lines = console.render_lines(page, console.options.update(height=height), pad=False)
    assert len(lines) <= height
    assert all(sum(cell_len(segment.text) for segment in line) <= width for line in lines)
    with console.capture() as captured:
        console.print(Screen(page))
    shown = captured.get() + summary(snapshot) + "".join(map(in_words, snapshot.errors))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", shown)
    msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot)


# --- the command


def beat(worker_id: str = "w", role: str = "worker") -> Write:
    slots = [StageSlots(Stage.RUN, "default", 8, 5, [0])] if role == "worker" else []
    return workers.TOPIC, worker_id, Heartbeat(worker_id, role, "host", 1, slots)


def a_system() -> list[Write]:
    """A worker, a proxy, a task with one session running and one that failed with words that no terminal should obey."""
    error = SessionError("run", Kind.AGENT, "exit_code", EVIL)
    answered = CallOutcome.ANSWERED
    delta, messages = TokenDelta(b""), MessageDelta(b"[]")
    call = Completion("c", "t.0", 1, "k", answered, "openai_chat", "e", 0, 1, delta, messages, pack_ids([1, 2, 3]))
    return [
        beat(),
        beat("p", "proxy"),
        *rows(
            TASK,
            SessionState("t.0", "t", 0, Phase.READY, 0),
            SessionState("t.1", "t", 1, Phase.ENDED, 0, status=Status.FAILED, reward=0.25, error=error),
        ),
        (completions.TOPIC, "t.0", call),
    ]


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("polar")), "watch", *arguments]


def environment(settings: Settings) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLAR_", "COLUMNS", "LINES"))}
    named = ("kafka", "namespace", "data")
    return kept | {"TERM": "xterm"} | {f"POLAR_{name.upper()}": str(getattr(settings, name)) for name in named}


@contextmanager
def watching(settings: Settings, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """On a pipe; ended at the latest with the block."""
    process = subprocess.Popen(
        command(*arguments), env=environment(settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], DEADLINE_S)[0], "nothing was said in time"
    line: str = process.stdout.readline()
    assert line, process.communicate()[1]
    return line


def test_json_tells_all_as_it_stands_and_changes_and_ends_well_on_sigterm(settings: Settings) -> None:
    write(settings, *a_system())
    with watching(settings, "--format", "json") as process:
        while (found := json.loads(next_line(process)))["reading"] is not None:
            pass
        assert (found["tasks"], found["phases"], found["statuses"]) == (1, {"ready": 1, "ended": 1}, {"FAILED": 1})
        run = next(load for load in found["stages"] if load["stage"] == "run")
        assert (run["waiting"], found["calls"]["answered"], found["calls"]["sampled_tokens"]) == (1, 1, 3)
        assert [(group["task_id"], group["rewards"]) for group in found["groups"]] == [("t", [None, 0.25])]
        assert (found["errors"][0]["session_id"], found["errors"][0]["message"]) == ("t.1", EVIL)
        assert (found["paused"], found["away_s"]) == (False, None)
        write(settings, beat(), (fleet.TOPIC, "state", FleetState(1, paused=True)))
        while not (found := json.loads(next_line(process)))["paused"]:
            pass
        assert found["processes"]["worker"] == 1
        run = next(load for load in found["stages"] if load["stage"] == "run")
        assert (run["workers"], run["slots"], run["busy"]) == (1, 8, 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert process.communicate()[1] == ""


def test_on_a_pipe_a_line_is_said_when_something_has_changed(settings: Settings) -> None:
    write(settings, *a_system())
    with watching(settings) as process:
        said = ""
        while "1 ready; 1 ended (1 FAILED)" not in said:
            said = next_line(process)
        while "run agent/exit_code" not in said:
            said = next_line(process)
        assert "t.1 run agent/exit_code: \\x1b]0;title\\x07\\x1b[2J[red]gone[/red] 漢字" in said
        write(settings, *rows(SessionState("t.0", "t", 0, Phase.RUNNING, 0)))
        while "1 running; 1 ended (1 FAILED)" not in said:
            said = next_line(process)
            assert not re.search(r"[\x00-\x09\x0b-\x1f]", said)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0


def test_without_its_topics_it_says_so(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_NAMESPACE", "bare")
    code, stdout, stderr = polar("watch")
    assert (code, stdout) == (3, "")
    assert "has no topic" in stderr


# --- on a terminal


def pages(screen: Terminal) -> list[list[str]]:
    """The lines of each page that was drawn whole, without colours."""
    drawn = screen.wrote.split("\x1b[H")[1:-1]
    return [re.sub(r"\x1b\[[0-9;]*m", "", page).replace("\r", "").split("\n") for page in drawn]


def fits(drawn: Sequence[Sequence[str]], columns: int, lines: int) -> bool:
    return all(len(page) <= lines and all(cell_len(line) <= columns for line in page) for page in drawn)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_page_fits_follows_the_size_and_gives_the_terminal_back(settings: Settings, number: signal.Signals) -> None:
    write(settings, *a_system())
    with closing(Terminal(command(), environment(settings), 80, 24)) as screen:
        screen.read_until(lambda: any("exit_code" in line for page in pages(screen) for line in page))
        assert fits(pages(screen), 80, 24)
        shown = "\n".join(pages(screen)[-1])
        assert "1 READY" in shown
        assert "t.1" in shown
        assert "[2J[red]gone" in shown
        assert EVIL[:9] not in screen.wrote
        assert "\x1b[2J" not in screen.wrote.split("\x1b[H", 1)[1]
        screen.resize(60, 15)
        drawn = len(pages(screen))
        screen.read_until(lambda: len(pages(screen)) > drawn + 2)
        assert fits(pages(screen)[-1:], 60, 15)
        assert screen.end(number) == 0
        assert screen.wrote.index("\x1b[?1049h") < screen.wrote.index("\x1b[?1049l")
        assert screen.wrote.rindex("\x1b[?25h") > screen.wrote.rindex("\x1b[?25l")
        assert screen.is_as_before
        assert "Traceback" not in screen.wrote


def test_q_ends_it_and_gives_the_terminal_back(settings: Settings) -> None:
    write(settings, *a_system())
    with closing(Terminal(command(), environment(settings), 80, 24)) as screen:
        screen.read_until(lambda: bool(pages(screen)))
        reads_keys = not screen.is_as_before
        assert reads_keys
        screen.type("x")
        drawn = len(pages(screen))
        screen.read_until(lambda: len(pages(screen)) > drawn + 2)
        screen.type("q")
        assert screen.end() == 0
        assert screen.is_as_before
        assert "Traceback" not in screen.wrote


# --- while Kafka is away


@pytest.mark.hard
async def test_kafka_going_away_is_told_and_waited_out(tmp_path: Path, namespace: str) -> None:
    with Broker(tmp_path, announce=print) as broker:
        settings = Settings(kafka=broker.bootstrap, namespace=namespace, replication=1, min_insync=1, data=tmp_path)
        await admin.apply(settings, catalogue.FIXED, embedded=True)
        await asyncio.to_thread(write, settings, *a_system())
        async with Live(settings) as live, asyncio.timeout(150):
            await live.caught_up()
            assert live.snapshot().phases == {"ready": 1, "ended": 1}
            await asyncio.to_thread(broker.kill)
            while (found := live.snapshot()).away_s is None:
                await asyncio.sleep(0.1)
            frozen_at = found.at
            assert "Kafka hasn't answered since" in summary(found)
            await asyncio.sleep(1)
            assert abs(live.snapshot().at - frozen_at) < 500
            await asyncio.to_thread(broker.start)
            while live.snapshot().away_s is not None:
                await asyncio.sleep(0.1)
            done = SessionState("t.0", "t", 0, Phase.ENDED, 0, status=Status.COMPLETED, reward=1.0)
            await asyncio.to_thread(write, settings, beat(), *rows(done))
            while live.snapshot().statuses != {"FAILED": 1, "COMPLETED": 1}:
                await asyncio.sleep(0.1)
            assert live.snapshot().groups[0].rewards == [1.0, 0.25]


async def test_what_is_not_there_at_the_start_is_not_ready_and_leaves_nothing_behind(settings: Settings) -> None:
    bare = settings.model_copy(update={"namespace": "bare"})
    with pytest.raises(NotReadyError, match="no topic bare"):
        async with Live(bare):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}
