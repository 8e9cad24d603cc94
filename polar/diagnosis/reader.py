"""Collects the facts of a diagnosis: rows, calls, facts and dead letters of one task, heartbeats, and the state of one proxy.

Only reads. Without Kafka the facts say so, so that a diagnosis is always made.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from analytics import health
from analytics.live.view import Live
from polar import dead_letters
from polar.diagnosis.facts import Calls, Facts, System
from polar.sessions import control_token
from polar.show.assembly import Log
from polar.show.reading import Rows, read_facts, read_logs, read_rows, read_trajectory
from topics.dead_letters import Letter
from topics.environment import http_json
from topics.environment.settings import Settings
from topics.events import Evaluated, InitFinished, RunFinished
from topics.log.follow import Since
from topics.types.errors import NotReadyError, SessionError
from topics.types.session import Phase, SessionState, session_id_of

ANSWER_S = 3.0
"""Deadline of a request to the proxy."""
LETTERS_S = 7 * 86_400.0
"""Retention of `polar.tasks`: an older letter is about another task of the same id."""
ATTEMPTS_S = 3 * 3600.0
"""Errors of earlier attempts are read for so long."""
SERVERS = re.compile(r'^polar_proxy_engine_servers_up\{engine="([^"]*)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class _Ready:
    """The body of `GET /readyz`."""

    ready: bool
    reason: str | None


async def read(settings: Settings, task_id: str, sample: int | None) -> list[Facts]:
    """Facts on the task's session `sample`, or on all of its sessions, in their order; one entry if there are none.

    Calls are read of a single session, or of those of a task that run; health flags of a single session alone.
    """
    name = task_id if sample is None else session_id_of(task_id, sample)
    try:
        rows, system, letters = await asyncio.gather(
            read_rows(settings, task_id), _system(settings), _letters(settings, task_id)
        )
        common = Facts(name, system, rows.task)
        sessions = [row for index, row in sorted(rows.sessions.items()) if sample in (None, index)]
        if not sessions:
            return [replace(common, letters=letters)]
        is_one = len(sessions) == 1
        logs = await read_logs(settings, [row for row in sessions if is_one or row.phase is Phase.RUNNING])
        errors = await _attempt_errors(settings, task_id, sessions)
        flags = await _flags(settings, rows, sessions[0], logs[sessions[0].session_id]) if is_one else None
    except NotReadyError as error:
        return [Facts(name, System(kafka=str(error)))]
    return [
        replace(
            common,
            name=row.session_id,
            session=row,
            letters=[letter for letter in letters if _key(letter) in (task_id, row.session_id)],
            calls=_calls(logs[row.session_id]) if row.session_id in logs else Calls(),
            attempt_error=errors.get(row.session_id),
            flags=flags,
        )
        for row in sessions
    ]


async def _flags(settings: Settings, rows: Rows, session: SessionState, log: Log) -> tuple[health.Flag, ...]:
    trajectory = await read_trajectory(settings, rows, session.sample_index, log)
    return () if trajectory is None else tuple(health.of_trajectory(trajectory, log.late))


def _calls(log: Log) -> Calls:
    last = log.refused[-1] if log.refused else None
    refusal = "" if last is None else f"{last.method} {last.path}: {last.message}"
    return Calls.of(log.calls.values(), sum(each.requests for each in log.refused), refusal)


async def _attempt_errors(
    settings: Settings, task_id: str, sessions: Sequence[SessionState]
) -> dict[str, SessionError]:
    """By session id: the error that ended the attempt before the current one."""
    again = {row.session_id: row for row in sessions if row.attempt > 1 and row.phase is not Phase.ENDED}
    facts = await read_facts(settings, task_id, ATTEMPTS_S) if again else []
    return {
        fact.session_id: fact.error
        for fact in facts
        if isinstance(fact, InitFinished | RunFinished | Evaluated)
        and fact.error is not None
        and fact.session_id in again
        and fact.attempt < again[fact.session_id].attempt
    }


async def _letters(settings: Settings, task_id: str) -> list[Letter]:
    """Dead letters of the task and its sessions that weren't sent again."""
    letters, replays = await dead_letters.read(
        settings, lambda letter: _key(letter).partition(".")[0] == task_id, Since.ago(LETTERS_S)
    )
    return [letter for letter in letters if letter.id not in replays]


def _key(letter: Letter) -> str:
    return (letter.key or b"").decode(errors="replace")


async def _system(settings: Settings) -> System:
    proxy, engines_down = await asyncio.to_thread(_proxy, settings)
    async with Live(settings, Live.PROCESSES) as live:
        await live.caught_up()
        return System.of(live.snapshot(), proxy, engines_down)


def _proxy(settings: Settings) -> tuple[str | None, list[str]]:
    """Why the proxy behind the control URL doesn't serve, and its engines without a server that is up.

    Without a control URL, or on a host without its token, nothing is known.
    """
    try:
        token = None if settings.control_token_file is None else control_token(settings.control_token_file)
    except NotReadyError:
        return None, []
    if settings.control_url is None:
        return None, []
    url = settings.control_url.rstrip("/")
    try:
        ready = msgspec.json.decode(http_json.send(f"{url}/readyz", timeout_s=ANSWER_S).body, type=_Ready)
        metrics = http_json.send(f"{url}/metrics", token=token, timeout_s=ANSWER_S).body.decode()
    except http_json.NoAnswerError as error:
        return f"{url} doesn't answer: {error}", []
    except msgspec.DecodeError:
        return f"{url} is no control port of a proxy", []
    return ready.reason, [name for name, up in SERVERS.findall(metrics) if float(up) == 0]
