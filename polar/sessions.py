"""Bring your own agent, from Python: URLs and a key for as long as a `with` block runs, then a trajectory (protocol 28).

Speaks to the control API of a proxy with the standard library alone, so that it can stand in any program; whether the trajectory is out
is read from the coordinator's table, where Kafka can be reached from here. What a session is and when it ends is the coordinator's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

from polar import client
from topics.environment import http_json, settings
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReady
from topics.types.session import Phase, SessionState, task_id_of

TTL_S = 3600.0
ANSWER_S = 60.0
"""For the control API's answer: it gives up by itself after 30 s, or 40."""
ENDED_S = 120.0
"""From a close to its trajectory: 2 s for calls in flight, then a build, of at most a minute."""

Mode = Literal["train", "eval"]
T = TypeVar("T")


class Refused(InputError):  # noqa: N818 - named for what the caller sees
    """The control API said no: `code` is its word for why (`taken`, `ended`, `unknown`, …), `reason` is for people."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(field, None, message)
        self.args = (f"{field}: {message}" if field else message,)
        self.code = code


def open_session(
    data: str | Path | None = None,
    *,
    settings: Settings | None = None,
    task_id: str | None = None,
    samples: int | None = None,
    ttl_s: float = TTL_S,
    mode: Mode = "train",
) -> OpenedSession:
    """Open a session of the system whose data folder is `data`, or of `settings`; neither: as the `polar` command finds it.

    `task_id`: the task whose next sample this is, None for one of its own. `samples`: how many a new task has, None for one.
    After `ttl_s` (at most a day) it ends by itself. Raises Refused, and NotReady where no control API or no coordinator answers.
    """
    found = settings if settings is not None else _load(data)
    asked = {"task_id": task_id, "num_samples": samples, "ttl_s": ttl_s, "mode": mode}
    told = _post(found, "/v1/sessions", {name: value for name, value in asked.items() if value is not None})
    try:
        expires_at = datetime.fromisoformat(told["expires_at"])
        return OpenedSession(found, told["session_id"], told["key"], told["env"], expires_at)
    except (KeyError, TypeError, ValueError):
        raise NotReady(f"{found.control_url} is no control API of Polar's") from None


def close_session(settings: Settings, session_id: str, reward: float | None = None) -> None:
    """Ask for an opened session's end. Raises Refused where it isn't open, NotReady."""
    if reward is not None and not math.isfinite(reward):
        raise InputError("reward", reward, "a reward is a finite number")
    _post(
        settings,
        f"/v1/sessions/{quote(session_id, safe='')}/close",
        {} if reward is None else {"reward": float(reward)},
    )


def control_token(file: Path) -> str:
    """The control API's token. Raises NotReady where the file holds none that a header can carry; it is never repeated."""
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotReady(f"the control token can't be read: {error}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise NotReady(f"the control token can't be read: {file} must hold one, of printable ASCII characters")
    return token


async def until_ended(settings: Settings, session_id: str) -> SessionState | None:
    """The session's row once its trajectory is out; None where that takes over two minutes. Raises NotReady without Kafka."""
    task_id = task_id_of(session_id)
    async with client.SessionTable(settings, {task_id}) as table:

        def row() -> SessionState | None:
            rows = table.sessions.get(task_id, {}).values()
            return next((r for r in rows if r.session_id == session_id and r.phase is Phase.ENDED), None)

        await table.until(lambda: row() is not None, ENDED_S)
        return row()


@dataclass
class OpenedSession:
    """A session for an agent of your own. As a context manager it is closed at the block's end, with the `reward` set by then."""

    settings: Settings = field(repr=False)
    session_id: str
    key: str = field(repr=False)
    env: dict[str, str] = field(repr=False)
    """URLs and key under the names that the providers' clients look for, each URL in the form that its client wants."""
    expires_at: datetime
    reward: float | None = None
    """None: not known. A trainer leaves such a session out of its group's baseline."""
    ended: SessionState | None = None
    """How it ended, once its trajectory is out; None where Kafka couldn't be asked."""
    is_closed: bool = False

    def close(self, *, wait: bool = True) -> SessionState | None:
        """End it with `reward`; with `wait` return when its trajectory is out. A second time nothing is asked again.

        Raises Refused where it had ended before, by its TTL or a cancel: the reward didn't count then.
        """
        if not self.is_closed:
            close_session(self.settings, self.session_id, self.reward)
            self.is_closed = True
        if wait and self.ended is None and self.settings.kafka is not None:
            with suppress(NotReady):
                self.ended = _run(until_ended(self.settings, self.session_id))
        return self.ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What the block raised is what its caller must see; not closed, the session ends at its TTL.
        with suppress(Refused, NotReady):
            self.close(wait=False)


def said(row: SessionState) -> str:
    """`t.0 COMPLETED, reward 1: 3 calls, 412 trainable tokens`."""
    reward = "no reward" if row.reward is None else f"reward {row.reward:.4g}"
    status = row.status.value if row.status is not None else "ended"
    calls = f"{row.calls} call{'' if row.calls == 1 else 's'}"
    return f"{row.session_id} {status}, {reward}: {calls}, {row.trainable_tokens} trainable tokens"


def _run(waiting: Coroutine[Any, Any, T]) -> T:
    """Await it, in a thread of its own where the caller stands in a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(waiting)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, waiting).result()


def _load(data: str | Path | None) -> Settings:
    return settings.load(None if data is None else Path(data))


def _post(found: Settings, path: str, body: dict[str, Any]) -> dict[str, Any]:
    if found.control_url is None or found.control_token_file is None:
        raise NotReady(
            f"no control API: {found.data / settings.ENV_FILE} doesn't exist and POLAR_CONTROL_URL and POLAR_CONTROL_TOKEN_FILE "
            "aren't set; start a system with `polar up`, or name a proxy's"
        )
    token = control_token(found.control_token_file)
    try:
        answer = http_json.send(found.control_url.rstrip("/") + path, body, token=token, timeout_s=ANSWER_S)
        told: dict[str, Any] = answer.json() if answer.status < 300 else {}
    except (http_json.NoAnswerError, ValueError) as error:
        raise NotReady(
            f"the control API at {found.control_url} doesn't answer: {error}; is the proxy running?"
        ) from None
    if answer.status >= 300:
        raise _refusal(answer, found.control_url)
    return told


def _refusal(answer: http_json.Answer, url: str) -> Refused | NotReady:
    try:
        told = answer.json()["error"]
        code, message, at = told["code"], told["message"], told.get("field", "")
    except (ValueError, KeyError, TypeError):
        return NotReady(f"{url} is no control API of Polar's: it answered {answer.status}")
    if answer.status >= 500:
        return NotReady(message)
    if answer.status == 401:
        return NotReady(f"{url} doesn't take this control token; is POLAR_CONTROL_TOKEN_FILE this proxy's?")
    return Refused(code, at, message)
