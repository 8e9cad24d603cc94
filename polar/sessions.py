"""Bring your own agent, from Python: a `Session` gives base URLs and a key for a `with` block, then a trajectory (protocol 28).

A session speaks to the control API of a proxy with the standard library alone, so any program can use it. It reads the coordinator's table
for the trajectory if Kafka can be reached. The coordinator decides what a session is and when it ends.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote

from polar.table import SessionTable
from topics.environment import http_json
from topics.environment.settings import ENV_FILE, Settings, load
from topics.types.errors import InputError, NotReadyError
from topics.types.session import SessionState, task_id_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

TTL_S = 3600.0
"""Default lifetime of a session."""
ANSWER_S = 60.0
"""Deadline of a request to the control API, which itself gives up after 30 or 40 s."""
ENDED_S = 120.0
"""Deadline from a close to its trajectory: calls in flight have 2 s, a build has a minute."""

Mode = Literal["train", "eval"]
T = TypeVar("T")


class SessionRefusedError(InputError):
    """The control API refused a request. `code` is its error code (`taken`, `ended`, `unknown`, …), `reason` is for people."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(field, None, message)
        self.args = (f"{field}: {message}" if field else message,)
        self.code = code


@dataclass
class Session:
    """An open session for an agent of your own. As a context manager it closes at the block's end, with the `reward` set by then."""

    settings: Settings = field(repr=False)
    session_id: str
    key: str = field(repr=False)
    env: dict[str, str] = field(repr=False)
    """Base URLs and key under the variable names that the providers' clients read, each URL in its client's form."""
    expires_at: datetime
    reward: float | None = None
    """None: unknown. A trainer leaves such a session out of its group's baseline."""
    ended: SessionState | None = None
    """How the session ended, once its trajectory is written. None if Kafka can't be reached from here."""
    is_closed: bool = False
    _clients: list[OpenAI] = field(default_factory=list, init=False, repr=False)
    _async_clients: list[AsyncOpenAI] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def open(
        cls,
        data: str | Path | None = None,
        *,
        settings: Settings | None = None,
        task_id: str | None = None,
        samples: int | None = None,
        ttl_s: float = TTL_S,
        mode: Mode = "train",
        run: str | None = None,
        label: str | None = None,
    ) -> Self:
        """Open a session of the system with the data folder `data`, or with `settings`, or of the one that `polar` would find.

        `task_id`: the task whose next sample this is; None makes a new task. `samples`: number of samples of a new task, by default
        one. `ttl_s`: the session ends by itself after this time, at most a day. `run`: the run of a new task. `label`: your own
        name for this session, one line of up to 128 characters.

        Raises SessionRefusedError. Raises NotReadyError if no control API or no coordinator answers.
        """
        found = settings if settings is not None else load(None if data is None else Path(data))
        request = {"task_id": task_id, "num_samples": samples, "ttl_s": ttl_s, "mode": mode, "run": run, "label": label}
        opened = _post(found, "/v1/sessions", {name: value for name, value in request.items() if value is not None})
        try:
            expires_at = datetime.fromisoformat(opened["expires_at"])
            return cls(found, opened["session_id"], opened["key"], opened["env"], expires_at)
        except (KeyError, TypeError, ValueError):
            raise NotReadyError(f"{found.control_url} is no control API of Polar's") from None

    def close(self, *, wait: bool = True, force: bool = False) -> SessionState | None:
        """End the session with `reward`; with `wait`, return when its trajectory is written. Closing twice sends one request.

        If no call was answered, the reward doesn't count, unless `force` is set.

        Raises SessionRefusedError if its TTL or a cancel had ended it before: the reward didn't count then. A reward that isn't a finite
        number closes it without a reward, and raises InputError.
        """
        while self._clients:
            self._clients.pop().close()
        if not self.is_closed:
            self._request_close(force)
        if wait and self.ended is None and self.settings.kafka is not None:
            with suppress(NotReadyError):
                self.ended = _run(until_ended(self.settings, self.session_id))
        return self.ended

    def _request_close(self, force: bool) -> None:
        try:
            reward = checked_reward(self.reward)
        except InputError:
            close_session(self.settings, self.session_id)
            self.is_closed = True
            raise
        close_session(self.settings, self.session_id, reward, force=force)
        self.is_closed = True

    async def aclose(self) -> None:
        """`close` for an event loop: it doesn't block the loop, nor wait for the trajectory."""
        try:
            while self._async_clients:
                await self._async_clients.pop().close()
        finally:
            await asyncio.to_thread(self.close, wait=False)

    def openai(self) -> OpenAI:
        """A new client of the package `openai`, with the session's base URL and key; `close` closes it. Any model name does.

        Raises NotReadyError if the package isn't installed.
        """
        self._clients.append(_openai().OpenAI(base_url=self.env["OPENAI_BASE_URL"], api_key=self.key))
        return self._clients[-1]

    def async_openai(self) -> AsyncOpenAI:
        """As `openai`, for `await`. `Client.session`, `Client.run` and `aclose` close it; elsewhere, close it yourself."""
        self._async_clients.append(_openai().AsyncOpenAI(base_url=self.env["OPENAI_BASE_URL"], api_key=self.key))
        return self._async_clients[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        # The caller must see the block's own error. A session that can't be closed here ends at its TTL.
        with suppress(SessionRefusedError, NotReadyError):
            self.close(wait=False)


def close_session(settings: Settings, session_id: str, reward: float | None = None, *, force: bool = False) -> None:
    """Request the end of an open session. Raises SessionRefusedError if it isn't open, NotReadyError.

    `force`: the reward counts even if no call was answered.
    """
    checked = checked_reward(reward)
    body: dict[str, Any] = {} if checked is None else {"reward": checked}
    if force:
        body["force"] = True
    _post(settings, f"/v1/sessions/{quote(session_id, safe='')}/close", body)


def checked_reward(reward: Any) -> float | None:
    """The reward as a float; None stays None. Raises InputError for what isn't a finite number."""
    try:
        if reward is None or math.isfinite(reward):
            return None if reward is None else float(reward)
    except (TypeError, ValueError, OverflowError):  # the last: an integer that no float can hold
        pass
    raise InputError("reward", reward, "a reward is a finite number")


async def opened(wanted: Callable[[], Session]) -> Session:
    """Call `wanted` in a thread. If this is cancelled meanwhile, the session is closed: nobody else knows of it."""
    opening = asyncio.create_task(asyncio.to_thread(wanted), name="open-session")
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait({opening})
        with suppress(InputError, NotReadyError):
            await opening.result().aclose()
        raise


async def until_ended(settings: Settings, session_id: str) -> SessionState | None:
    """The session's row once its trajectory is written. None after two minutes. Raises NotReadyError without Kafka."""
    task_id = task_id_of(session_id)
    async with SessionTable(settings, {task_id}) as table:

        def row() -> SessionState | None:
            return next((row for row in table.ended(task_id) if row.session_id == session_id), None)

        await table.until(lambda: row() is not None, ENDED_S)
        return row()


def control_token(file: Path) -> str:
    """The control API's token. Raises NotReadyError, without its content, if the file holds no token that fits into a header."""
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(f"the control token can't be read: {error}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise NotReadyError(f"the control token can't be read: {file} must hold one, of printable ASCII characters")
    return token


def _openai() -> Any:
    try:
        import openai
    except ImportError:
        raise NotReadyError("a session's OpenAI client needs the package openai: pip install openai") from None
    return openai


def _run(waiting: Coroutine[Any, Any, T]) -> T:
    """Await it, in a thread of its own if the caller runs in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(waiting)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, waiting).result()


def _post(found: Settings, path: str, body: dict[str, Any]) -> dict[str, Any]:
    if found.control_url is None or found.control_token_file is None:
        raise NotReadyError(
            f"no control API: {found.data / ENV_FILE} doesn't exist and POLAR_CONTROL_URL and POLAR_CONTROL_TOKEN_FILE "
            "aren't set; start a system with `polar up`, or name a proxy's"
        )
    token = control_token(found.control_token_file)
    try:
        answer = http_json.send(found.control_url.rstrip("/") + path, body, token=token, timeout_s=ANSWER_S)
        document: dict[str, Any] = answer.json() if answer.status < 300 else {}
    except (http_json.NoAnswerError, ValueError) as error:
        raise NotReadyError(
            f"the control API at {found.control_url} doesn't answer: {error}; is the proxy running?"
        ) from None
    if answer.status >= 300:
        raise _refusal(answer, found.control_url)
    return document


def _refusal(answer: http_json.Answer, url: str) -> SessionRefusedError | NotReadyError:
    try:
        error = answer.json()["error"]
        code, message, at = error["code"], error["message"], error.get("field", "")
    except (ValueError, KeyError, TypeError):
        return NotReadyError(f"{url} is no control API of Polar's: it answered {answer.status}")
    if answer.status >= 500:
        return NotReadyError(message)
    if answer.status == 401:
        return NotReadyError(f"{url} doesn't accept this control token; is POLAR_CONTROL_TOKEN_FILE this proxy's?")
    return SessionRefusedError(code, at, message)
