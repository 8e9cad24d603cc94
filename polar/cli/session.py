"""`polar session` opens a session for an agent of your own, with URLs and a key, and closes it (protocol 28)."""

from __future__ import annotations

import asyncio
import re
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli import session_ids
from polar.cli.exits import Exit, ended
from polar.cli.options import Data, checked_run
from polar.cli.output import note, print_json, say
from topics.environment import settings
from topics.types.errors import InputError, NotReadyError
from topics.types.session import SessionState, Status, task_id_of
from topics.types.task import RUN_LIMIT_S, SAMPLES_LIMIT

if TYPE_CHECKING:
    from topics.environment.settings import Settings

TTL = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)")
UNITS_S = {"s": 1, "m": 60, "h": 3600}
LEAST_S = 1.0
"""Shortest lifetime of a session."""

app = typer.Typer(no_args_is_help=True, help="Bring your own agent: open a session for it, and close it.")


class Format(StrEnum):
    ENV = "env"
    JSON = "json"


class Mode(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


@app.command("open")
def open_(
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="T", help="Open the next sample of this task.  [default: a new task]"),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=SAMPLES_LIMIT, help="Number of samples of a new task.  [default: 1]"),
    ] = None,
    ttl: Annotated[str, typer.Option(metavar="TTL", help="Lifetime: 90s, 30m or 1h, at most 24h.")] = "1h",
    mode: Annotated[
        Mode, typer.Option(help="train: the key enforces the training defaults for sampling.")
    ] = Mode.TRAIN,
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Run that a new task belongs to.  [default: none]")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="NAME", help="Your own name for this session, in status, show and SQL."),
    ] = None,
    output: Annotated[
        Format, typer.Option("--format", help="env: for `eval` in a shell. json: for programs.")
    ] = Format.ENV,
    data: Data = None,
) -> None:
    """Open a session, and print base URLs and a key for each provider's client.

    In a shell: eval "$(polar session open)". Every call made with the key is captured; `polar session close` ends the session.
    """
    from polar.sessions import Session

    ttl_s = seconds(ttl)
    found = settings.load(data)
    session = Session.open(
        settings=found, task_id=task, samples=samples, ttl_s=ttl_s, mode=mode.value, run=checked_run(run), label=label
    )
    expires_at = session.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    if output is Format.JSON:
        opened = {"session_id": session.session_id, "key": session.key, "expires_at": expires_at, "env": session.env}
        print_json(opened)
    else:
        names = {"POLAR_SESSION_ID": session.session_id, "POLAR_TASK_ID": task_id_of(session.session_id)}
        for name, value in {**names, **session.env}.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
    note(f"{session.session_id} is open until {expires_at}; `polar session close {session.session_id}` ends it")


@app.command("close")
def close(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", envvar="POLAR_SESSION_ID", help="<task>.<sample>.")
    ] = None,
    reward: Annotated[float | None, typer.Option(metavar="R", help="Reward of the session.  [default: none]")] = None,
    data: Data = None,
) -> None:
    """Close an open session, and wait for its trajectory."""
    from polar.sessions import SessionRefusedError, close_session

    if session is None:
        raise ended(
            "no session given: name one, or set POLAR_SESSION_ID as `polar session open` prints it", Exit.BAD_INPUT
        )
    found = settings.load(data)
    target = session_ids.parse(session)
    if target.sample is None:
        raise InputError("SESSION", session, "expected <task id>.<sample index>")
    has_ended = False
    try:
        close_session(found, session, reward)
    except SessionRefusedError as refused:
        if refused.code != "ended":
            raise
        has_ended = True
    asyncio.run(_print_result(found, session, reward, has_ended=has_ended))


async def _print_result(found: Settings, session_id: str, reward: float | None, *, has_ended: bool) -> None:
    """Print the outcome from the coordinator's table. Raises Exit if the close or its reward came too late."""
    from polar.sessions import until_ended

    try:
        row = await until_ended(found, session_id)
    except NotReadyError as error:
        say(f"{session_id} {'had ended already' if has_ended else 'is closed'}")
        note(f"not waiting for its trajectory: {error}")
        return
    if row is None:
        raise ended(
            f"{session_id} is closed, but its trajectory isn't written yet: see `polar status {session_id}`",
            Exit.FAILED,
        )
    say(f"{_result(row)} (polar show {session_id})")
    if has_ended and reward is not None and (row.status, row.reward) != (Status.COMPLETED, reward):
        raise ended(f"{session_id} had ended already: the reward {reward:g} came too late", Exit.FAILED)
    if has_ended:
        note(f"{session_id} had ended already")


def _result(row: SessionState) -> str:
    """`t.0 COMPLETED, reward 1: 3 calls, 412 trainable tokens`."""
    reward = "no reward" if row.reward is None else f"reward {row.reward:.4g}"
    status = row.status.value if row.status is not None else "ended"
    calls = f"{row.calls} call{'' if row.calls == 1 else 's'}"
    return f"{row.session_id} {status}, {reward}: {calls}, {row.trainable_tokens} trainable tokens"


def seconds(ttl: str) -> float:
    """`90s`, `30m`, `1h` in seconds. Raises InputError."""
    found = TTL.fullmatch(ttl)
    if found is None:
        raise InputError("--ttl", ttl, "expected a number and s, m or h: 90s, 30m, 1h")
    value = float(found[1]) * UNITS_S[found[2]]
    if not LEAST_S <= value <= RUN_LIMIT_S:
        raise InputError("--ttl", ttl, "must be from 1s to 24h")
    return value
