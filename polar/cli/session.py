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
from topics.types.session import SessionState, Status
from topics.types.task import RUN_LIMIT_S, SAMPLES_LIMIT

if TYPE_CHECKING:
    from polar.sessions import Session
    from topics.environment.settings import Settings

TTL = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)")
UNITS_S = {"s": 1, "m": 60, "h": 3600}
LEAST_S = 1.0
"""Shortest lifetime of a session."""
MODEL = "any"
"""Any name does if the proxy has one engine."""
LOOK_S = 10.0
"""Longest look for the reason why a session has no calls, a detail of a warning: other sessions may have filled its partition since."""

app = typer.Typer(no_args_is_help=True, help="Bring your own agent: open a session for it, and close it.")


class Format(StrEnum):
    ENV = "env"
    JSON = "json"


class Mode(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


Task = Annotated[
    str | None,
    typer.Option("--task", metavar="T", help="Open the next sample of this task.  [default: a new task]"),
]
Samples = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=SAMPLES_LIMIT, help="Number of samples of a new task.  [default: 1]"),
]
Ttl = Annotated[str, typer.Option(metavar="TTL", help="Lifetime: 90s, 30m or 1h, at most 24h.")]
SessionMode = Annotated[Mode, typer.Option(help="train: the key enforces the training defaults for sampling.")]
Run = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Run that a new task belongs to.  [default: none]")
]
Label = Annotated[
    str | None,
    typer.Option("--label", metavar="NAME", help="Your own name for this session, in status, show and SQL."),
]
ModelName = Annotated[
    str, typer.Option("--model", metavar="NAME", help="Model name that the client requests; it may choose the engine.")
]


@app.command("open")
def open_(
    client: Annotated[
        str | None,
        typer.Option("--for", metavar="CLIENT", help="Also set what this client needs: codex, aider, langchain, …"),
    ] = None,
    model: ModelName = MODEL,
    task: Task = None,
    samples: Samples = None,
    ttl: Ttl = "1h",
    mode: SessionMode = Mode.TRAIN,
    run: Run = None,
    label: Label = None,
    output: Annotated[
        Format, typer.Option("--format", help="env: for `eval` in a shell. json: for programs.")
    ] = Format.ENV,
    data: Data = None,
) -> None:
    """Open a session, and print base URLs and a key for each provider's client.

    In a shell: eval "$(polar session open)". Every call made with the key is captured; `polar session close` ends the session.
    """
    from consumers.harnesses import clients
    from polar.cli import session_client

    found = settings.load(data)
    if client is not None:
        clients.find(client)  # before a session is opened for an unknown one
    session = _opened(found, task, samples, ttl, mode, run, label)
    setup = session_client.ClientSetup(session.env, ())
    if client is not None:
        try:
            setup = session_client.set_up(found, session, client, model)
        except BaseException:  # also Ctrl-C
            _close(found, session.session_id)
            raise
    expires_at = _time(session)
    if output is Format.JSON:
        opened = {"session_id": session.session_id, "key": session.key, "expires_at": expires_at, "env": setup.env}
        print_json(opened if client is None else {**opened, "arguments": setup.arguments})
    else:
        for name, value in setup.variables(session).items():
            typer.echo(f"export {name}={shlex.quote(value)}")
        if setup.arguments:
            note(f"start {client} with these arguments: {shlex.join(setup.arguments)}")
    note(f"{session.session_id} is open until {expires_at}; `polar session close {session.session_id}` ends it")


@app.command("run")
def run_(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="As in `polar session open --for`.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]", help="The client's arguments. For a library: a command."),
    ] = None,
    model: ModelName = MODEL,
    task: Task = None,
    samples: Samples = None,
    ttl: Ttl = "1h",
    mode: SessionMode = Mode.TRAIN,
    run: Run = None,
    label: Label = None,
    data: Data = None,
) -> None:
    """Open a session, run a client with it here, and close it when the client ends.

    The exit code is the client's. The session has no reward.
    """
    from polar.cli import session_client
    from polar.cli.foreground import Foreground, Interrupted

    found = settings.load(data)
    command = session_client.command(client, arguments or [])
    foreground = Foreground()
    try:
        with foreground.guarded():
            session = _opened(found, task, samples, ttl, mode, run, label)
            try:
                note(f"{session.session_id} is open until {_time(session)}")
                setup = session_client.set_up(found, session, client, model)
                code = foreground.run([command[0], *setup.arguments, *command[1:]], setup.environment())
            except OSError as error:
                raise ended(f"{command[0]} can't be started: {error.strerror}", Exit.NOT_READY) from None
            finally:
                foreground.finish()
                _close(found, session.session_id)
    except Interrupted as interrupted:
        raise typer.Exit(interrupted.exit_code) from None
    try:
        asyncio.run(_note_result(found, session.session_id))
    except KeyboardInterrupt:
        note(f"not waiting for the trajectory of {session.session_id}: interrupted")
    raise typer.Exit(code)


@app.command("close")
def close(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", envvar="POLAR_SESSION_ID", help="<task>.<sample>.")
    ] = None,
    reward: Annotated[float | None, typer.Option(metavar="R", help="Reward of the session.  [default: none]")] = None,
    force: Annotated[bool, typer.Option("--force", help="The reward counts even if no call was answered.")] = False,
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
        close_session(found, session, reward, force=force)
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
    _warn_of_no_answers(row, await _why_no_calls(found, row), None if has_ended else reward)
    if has_ended and reward is not None and (row.status, row.reward) != (Status.COMPLETED, reward):
        raise ended(f"{session_id} had ended already: the reward {reward:g} came too late", Exit.FAILED)
    if has_ended:
        note(f"{session_id} had ended already")


async def _why_no_calls(found: Settings, row: SessionState) -> str | None:
    """Why a session has no calls, as far as the log tells within `LOOK_S`; None if it has some."""
    from polar.cli.show.refused import summary
    from polar.show.reading import read_refused

    if row.calls:
        return None
    try:
        async with asyncio.timeout(LOOK_S):
            refused = await read_refused(found, row)
    except (NotReadyError, TimeoutError):
        return "none came with its key, or all were refused"
    # Not every request leaves a record (proxy/refused_requests.py).
    return summary(refused) if refused else "no request with its key is recorded"


def _warn_of_no_answers(row: SessionState, why_no_calls: str | None, reward: float | None = None) -> None:
    """The row has the number of its calls and of trainable tokens, but not how many calls were answered."""
    if row.calls == 0:
        note(f"{row.session_id} has no calls: {why_no_calls}; see `polar session open --for`")
    elif row.trainable_tokens == 0:
        note(
            f"{row.session_id} has no trainable tokens: its calls failed, or their answers can't be trained;"
            f" see `polar show {row.session_id}`"
        )
    if reward is not None and row.status is Status.COMPLETED and row.reward is None:
        note(f"the reward {reward:g} doesn't count, since no call was answered; `--force` gives it to such a session")


async def _note_result(found: Settings, session_id: str) -> None:
    """As `_print_result`, on stderr: stdout is the client's."""
    from polar.sessions import until_ended

    try:
        row = await until_ended(found, session_id)
    except NotReadyError as error:
        note(f"not waiting for the trajectory of {session_id}: {error}")
        return
    if row is None:
        note(f"the trajectory of {session_id} isn't written yet: see `polar status {session_id}`")
        return
    note(f"{_result(row)} (polar show {session_id})")
    _warn_of_no_answers(row, await _why_no_calls(found, row))


def _close(found: Settings, session_id: str) -> None:
    """Close a session whose client has ended; an error is only noted, since the client's exit code counts."""
    from polar.sessions import SessionRefusedError, close_session

    try:
        close_session(found, session_id)
    except SessionRefusedError as refused:
        note(f"{session_id} had ended before its client did" if refused.code == "ended" else str(refused))
    except NotReadyError as error:
        note(f"{session_id} isn't closed, and ends at its TTL: {error}")


def _opened(
    found: Settings, task: str | None, samples: int | None, ttl: str, mode: Mode, run: str | None, label: str | None
) -> Session:
    from polar.sessions import Session

    return Session.open(
        settings=found,
        task_id=task,
        samples=samples,
        ttl_s=seconds(ttl),
        mode=mode.value,
        run=checked_run(run),
        label=label,
    )


def _time(session: Session) -> str:
    return session.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")


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
