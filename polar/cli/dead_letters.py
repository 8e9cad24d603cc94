"""`polar dead-letters` lists, shows and replays records that could not be processed."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from polar.cli.options import Data, Format, Output
from polar.cli.output import note, one_line, print_json, say
from polar.cli.output import show as show_table
from topics.environment import settings
from topics.types.errors import InputError

if TYPE_CHECKING:
    from topics.dead_letters import Letter, Replay
    from topics.log.follow import Since

METAVAR = "LETTER"
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

app = typer.Typer(no_args_is_help=True, help="Records that could not be processed: list, show, replay.")
LetterId = Annotated[int, typer.Argument(metavar=METAVAR, min=0, help="Id from `polar dead-letters list`.")]


@app.command("list")
def list_letters(
    topic: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only records of this topic, such as `tasks`.", show_default=False),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only reasons that contain this text, in any case.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only since then: 30m, 12h, 7d, or a date and time.", show_default=False),
    ] = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """List dead letters, oldest first. They are kept for 30 days."""
    from polar import dead_letters

    found = settings.load(data)
    if topic is not None:
        _require_topic(_short(found, topic))

    def keeps(letter: Letter) -> bool:
        return (
            topic in (None, letter.topic, _short(found, letter.topic))
            and (reason or "").lower() in letter.reason.lower()
        )

    letters, replays = asyncio.run(dead_letters.read(found, keeps, _since(since)))
    if output is Format.JSON:
        print_json([_described(letter, replays.get(letter.id)) for letter in letters])
        return
    if not letters:
        note(
            "no dead letters" if (topic, reason, since) == (None, None, None) else "no dead letters match these options"
        )
        return
    rows = [
        [
            letter.id,
            _time(letter.written_ms),
            _short(found, letter.topic),
            _key(letter),
            "replayed" if letter.id in replays else None,
            letter.process,
            one_line(f"{letter.field}: {letter.reason}" if letter.field else letter.reason),
        ]
        for letter in letters
    ]
    show_table([">letter", "written", "topic", "key", "state", "process", "reason"], rows)


@app.command("show")
def show(letter_id: LetterId, output: Output = Format.TABLE, data: Data = None) -> None:
    """Show one dead letter whole, with its record decoded if it can be."""
    from polar import dead_letters

    letters, replays = asyncio.run(dead_letters.find(settings.load(data), {letter_id}))
    described = _described(letters[0], replays.get(letter_id)) | {"record": readable(letters[0].value)}
    if output is Format.JSON:
        print_json(described)
        return
    for name, value in described.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        say(f"{name}: {text}")


@app.command("replay")
def replay(
    letter_ids: Annotated[
        list[int], typer.Argument(metavar=METAVAR, min=0, help="Ids from `polar dead-letters list`.")
    ],
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Send dead letters to their topics again, once their cause is gone: unchanged, and each only once."""
    from polar import dead_letters

    outcomes = asyncio.run(dead_letters.replay(settings.load(data), set(letter_ids)))
    if output is Format.JSON:
        print_json([{"letter": one.id, "sent_to": one.sent_to, "sent": one.is_new} for one in outcomes])
        return
    for one in outcomes:
        if one.is_new:
            say(f"letter {one.id} sent to {one.sent_to}")
        else:
            note(f"letter {one.id} was replayed before, to {one.sent_to}: not sent again")


def readable(value: bytes) -> Any:
    """The fields of a record, its text, or base64 if its bytes are neither."""
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            found = decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            return _as_json(found)
    return _text(value)


def _as_json(value: Any) -> Any:
    match value:
        case dict():
            return {name if isinstance(name, str) else _text_of(name): _as_json(inner) for name, inner in value.items()}
        case list():
            return [_as_json(inner) for inner in value]
        case bytes():
            return readable(value)
        case str() | int() | float() | bool() | None:
            return value
        case _:
            return str(value)


def _text_of(name: object) -> str:
    return str(_text(name)) if isinstance(name, bytes) else str(name)


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _described(letter: Letter, replayed: Replay | None) -> dict[str, Any]:
    return {
        "letter": letter.id,
        "written": _time(letter.written_ms),
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "key": _key(letter),
        "process": letter.process,
        "field": letter.field or None,
        "reason": letter.reason,
        "bytes": len(letter.value),
        "replayed_to": replayed.sent_to if replayed else None,
    }


def _key(letter: Letter) -> str | None:
    return None if letter.key is None else letter.key.decode(errors="backslashreplace")


def _short(found: settings.Settings, topic: str) -> str:
    return topic.removeprefix(f"{found.namespace}.")


def _require_topic(short: str) -> None:
    """Raises InputError."""
    from topics import stages, trajectories
    from topics.contract import catalogue

    names = [topic.name for topic in catalogue.FIXED]
    # Pools have queues and tasks have output topics of their own.
    if short not in names and not short.startswith((stages.PREFIX, f"{trajectories.TOPIC.name}.")):
        raise InputError("--topic", short, f"no such topic; there are: {', '.join([*names, f'{stages.PREFIX}…'])}")


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _since(text: str | None) -> Since:
    """Raises InputError."""
    from topics.log.follow import Since

    if text is None:
        return Since.BEGINNING
    if (ago := re.fullmatch(r"(\d{1,9})([smhd])", text)) is not None:
        return Since.ago(int(ago[1]) * UNITS_S[ago[2]])
    try:
        return Since.ago(max(0.0, time.time() - datetime.fromisoformat(text).timestamp()))
    except (ValueError, OverflowError):
        raise InputError(
            "--since", text, "expected 30m, 12h, 7d, or a date and time such as 2026-01-31T12:00"
        ) from None
