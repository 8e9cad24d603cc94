"""Names that anyone with a login of Kafka may have written, in each command that shows them, on a terminal."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.polar.cli.commands import Write, rows, write
from tests.polar.cli.terminal import Terminal
from tests.polar.cli.test_watch import environment
from tests.polar.show.recording import PLAN, TASK, a_session, row
from topics import completions, fleet, trajectories, workers
from topics.completions import Emitted, Open
from topics.environment.settings import Settings
from topics.fleet import FleetState, PolicyVersion
from topics.types.completion import CallError, CallOutcome
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Stage, Status
from topics.workers import Heartbeat, StageSlots

pytestmark = pytest.mark.contract

FORGED = "forged-row 1 1 1 COMPLETED"
EVIL = f"name\x1b]0;title\x07\x1b[2J\x7f\x9b2J\u202eltr\u2028\U000e0041\r\n{FORGED}\nend" + "x" * 2000
DRAWN = re.compile(r"\x1b\[([0-9;]*m|H|\?(1049|25)[hl])")
"""What a command itself sends to a terminal: colours, and for the page of `polar watch` its screen, cursor and corner."""
CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def a_hostile_log() -> list[Write]:
    """Session `t.0` and its fleet with a hostile name wherever a record has room for one, and a task that itself has one."""
    plan = replace(PLAN, pool=EVIL, harness=EVIL, builder=EVIL, mode=EVIL, output=EVIL, user=EVIL)
    error = SessionError(EVIL, Kind.AGENT, EVIL, EVIL)
    named: dict[str, Any] = {
        "worker_id": EVIL,
        "backend": EVIL,
        "unenforced": [EVIL],
        "run_warning": EVIL,
        "error": error,
        "artifacts": {EVIL: EVIL},
    }
    state = row(status=Status.FAILED, reward_reason=EVIL, log_offset=0, **named)
    call_fields = {"finish_reason": EVIL, "model_served": EVIL, "model_requested": EVIL, "kind_rule": EVIL}
    recording = a_session()
    recording.calls[:] = [
        replace(call, dialect=EVIL, engine=EVIL, lineage={EVIL: EVIL}, **call_fields) for call in recording.calls
    ]
    failed = recording.calls[-1]
    recording.calls[-1] = replace(failed, outcome=CallOutcome.FAILED, error=CallError(EVIL, EVIL, 500))
    trajectory = recording.build(artifacts={EVIL: EVIL}, error=error)
    trajectory = replace(trajectory, builder=EVIL, harness=EVIL, mode=EVIL)
    other = replace(trajectory, session_id=f"{EVIL}.0", task_id=EVIL)
    return [
        (completions.TOPIC, "t.0", Open("t.0", 1, "claim")),
        *((completions.TOPIC, "t.0", call) for call in recording.calls),
        (completions.TOPIC, "t.0", Emitted("t", "t.0")),
        *((trajectories.TOPIC, one.session_id, one) for one in (trajectory, other)),
        *rows(replace(TASK, plan=plan), state),
        *rows(replace(TASK, task_id=EVIL, plan=plan), SessionState(f"{EVIL}.0", EVIL, 0, Phase.READY, 0)),
        (fleet.TOPIC, "state", FleetState(4, paused=True, by=EVIL)),
        (fleet.TOPIC, f"policy:{EVIL}", PolicyVersion(7, engine=EVIL)),
    ]


@contextmanager
def a_hostile_process(settings: Settings) -> Iterator[None]:
    """Sends heartbeats inside the context, so the process is alive whenever a command looks."""
    beat = Heartbeat(EVIL, EVIL, EVIL, 1, [StageSlots(Stage.RUN, EVIL, 8, 5, [0])], obstacle=EVIL)
    ended = threading.Event()

    def send() -> None:
        while not ended.is_set():
            write(settings, (workers.TOPIC, EVIL, beat))
            ended.wait(1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def lines_on_terminal(
    settings: Settings, command: str, is_complete: Callable[[str], bool] | None = None, term: str = "xterm"
) -> list[str]:
    """The lines that `polar COMMAND` leaves on a terminal. One that doesn't end by itself is interrupted once `is_complete`."""
    polar = str(Path(sys.executable).with_name("polar"))
    with closing(Terminal([polar, *command.split()], environment(settings) | {"TERM": term}, 200, 60)) as screen:
        if is_complete is not None:
            screen.read_until(lambda: is_complete(screen.wrote))
        assert screen.end(None if is_complete is None else signal.SIGINT) == 0, screen.wrote
        return DRAWN.sub("", screen.wrote).split("\r\n")


def check(command: str, lines: list[str]) -> None:
    assert any("name" in line for line in lines), f"polar {command} shows no name: {lines}"
    for line in lines:
        found = {char for char in line if unicodedata.category(char) in CONTROLS}
        assert not found, f"polar {command}: {line[:300]!r}"
        assert not line.startswith(FORGED), f"polar {command}: a name begins a line: {line[:300]!r}"


ONCE = ["status", "status t", "fleet status", "policy show", "show t.0 --tokens", "show t.0 --call 1"]


def test_a_hostile_name_on_a_page_controls_no_terminal_and_begins_no_line(settings: Settings) -> None:
    write(settings, *a_hostile_log())
    with a_hostile_process(settings):
        for command in (*ONCE, "trajectories"):
            check(command, lines_on_terminal(settings, command))
        for term in ("xterm", "dumb"):
            check("watch", lines_on_terminal(settings, "watch", lambda wrote: "1 name" in wrote, term))
        follow = "trajectories --follow"
        check(follow, lines_on_terminal(settings, follow, lambda wrote: wrote.count("name") >= 2))


def test_a_hostile_name_in_json_controls_no_terminal_and_is_whole(settings: Settings) -> None:
    write(settings, *a_hostile_log())
    with a_hostile_process(settings):
        documents = {command: lines_on_terminal(settings, f"{command} --format json") for command in ONCE}
        documents["trajectories"] = lines_on_terminal(settings, "trajectories --format jsonl")[:1]
        is_read = re.compile(r"\{.*title.*\}\r\n").search
        documents["watch"] = lines_on_terminal(settings, "watch --format json", lambda wrote: bool(is_read(wrote)))[-2:]
    for command, lines in documents.items():
        check(command, lines)
        assert json.dumps(EVIL)[1:-1] in json.dumps(json.loads("".join(lines))), command
