"""A CLI's interactive mode in a pseudo-terminal: what a person sees there, types and presses.

Every wait ends by a text on the screen or fails with the screen. The program runs on this host, with the environment that a bare process
of the session has, and carries the session's mark, so it dies with the runtime.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from signal import SIGKILL
from typing import Any, TypeVar

import pexpect
import pyte

from consumers.harnesses.base import Launch
from consumers.runtimes.base import ModelAccess
from consumers.runtimes.process import ProcessRuntime
from consumers.runtimes.session_folder import RUNTIME_MARK

COLUMNS, ROWS = 160, 60
WAIT_S = 60.0
"""Longest wait for a text; a CLI on a busy machine starts in 10 s."""
TRIES, AGAIN_S, ECHO_S = 10, 3.0, 0.5
T = TypeVar("T")
KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "tab": "\t",
    "shift-tab": "\x1b[Z",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "ctrl-c": "\x03",
    "ctrl-d": "\x04",
}
PASTE = "\x1b[200~{}\x1b[201~"
"""The bytes of a pasted text: terminals send it in brackets (bracketed paste)."""


class _Screen(pyte.Screen):
    """Answers a program that asks for the cursor's place or the kind of terminal."""

    def __init__(self, reply: Callable[[str], None]) -> None:
        super().__init__(COLUMNS, ROWS)
        self._reply = reply

    def write_process_input(self, data: str) -> None:
        self._reply(data)

    def report_device_status(self, mode: int, private: bool = False) -> None:
        if not private:
            super().report_device_status(mode)

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        if not private:  # a question about the keyboard, which pyte takes for a colour
            super().select_graphic_rendition(*attributes)


class Terminal:
    """One program in a terminal of its own; `opened` makes it."""

    def __init__(self, child: pexpect.spawn[Any]) -> None:
        self._child = child
        self._screen = _Screen(lambda text: self._send(text))
        self._stream = pyte.ByteStream(self._screen)
        self._changed = asyncio.Event()
        self.is_over = False
        asyncio.get_running_loop().add_reader(child.fileno(), self._read)

    @property
    def text(self) -> str:
        """The screen's lines, without spaces at their ends."""
        return "\n".join(line.rstrip() for line in self._screen.display).strip("\n")

    async def wait_for(self, *texts: str, deadline_s: float = WAIT_S) -> str:
        """The first of `texts`, regular expressions, that is on the screen. Fails with the screen after `deadline_s` or at the end."""
        return await self._until(
            lambda: next((each for each in texts if re.search(each, self.text)), None), deadline_s, repr(texts)
        )

    async def wait_for_end(self, *, deadline_s: float = WAIT_S) -> None:
        """Until the program has closed its terminal."""
        await self._until(lambda: "over" if self.is_over else None, deadline_s, "its end")

    async def type(self, text: str) -> None:
        """Type a text, key by key, and wait until its end is on the screen and what it offers for completion has been drawn."""
        for char in text:
            self._send(char)
            # Without the pause a CLI takes the keys for a pasted text, in which enter begins a line.
            await self._changes_in(ECHO_S)
        await self.wait_for(re.escape(text[-20:]))
        for _ in range(TRIES):  # a screen with a clock never rests
            if not await self._changes_in(ECHO_S):
                break

    async def leave_by(self, key: str) -> None:
        """Press a key of KEYS until the program has closed its terminal; many want it twice."""
        for _ in range(TRIES):
            self.press(key)
            with suppress(TimeoutError):
                await self._on_screen(lambda: self.is_over, ECHO_S)
                break
        await self.wait_for_end()

    def paste(self, text: str) -> None:
        self._send(PASTE.format(text))

    def press(self, key: str) -> None:
        """Press one of KEYS, or a character."""
        self._send(KEYS.get(key, key))

    async def answer(self, shown: str, key: str) -> None:
        """Wait for a dialog, and press a key until it has gone: dialogs ignore keys while they are painted."""
        await self.wait_for(shown)
        for _ in range(TRIES):
            self.press(key)
            with suppress(TimeoutError):
                await self._on_screen(lambda: not re.search(shown, self.text), AGAIN_S)
                return
        raise AssertionError(f"{key} doesn't answer {shown!r}; the screen:\n{self.text}")

    async def close(self) -> None:
        """End the program, if it still runs. On a busy machine its death takes longer than pexpect waits for one."""
        self._stop_reading()
        self._child.kill(SIGKILL)
        await asyncio.to_thread(self._child.wait)
        self._child.close()

    async def _until(self, found: Callable[[], str | None], deadline_s: float, what: str) -> str:
        def found_or_over() -> str | None:
            if (text := found()) is None:
                assert not self.is_over, f"the program ended before {what}; its screen:\n{self.text}"
            return text

        try:
            return await self._on_screen(found_or_over, deadline_s)
        except TimeoutError:
            raise AssertionError(f"no {what} within {deadline_s} s; the screen:\n{self.text}") from None

    async def _on_screen(self, holds: Callable[[], T | None], limit_s: float) -> T:
        """The first true result of `holds`, asked again at each change. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while not (result := holds()):
                self._changed.clear()
                await self._changed.wait()
            return result

    async def _changes_in(self, limit_s: float) -> bool:
        """Wait for the screen's next change, at most `limit_s`; whether there was one."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
        return self._changed.is_set()

    def _send(self, text: str) -> None:
        self._child.send(text.encode())

    def _read(self) -> None:
        try:
            data = os.read(self._child.fileno(), 65536)
        except OSError:  # how Linux says that nobody has the terminal open
            data = b""
        if data:
            self._stream.feed(data)
        else:
            self._stop_reading()
        self._changed.set()

    def _stop_reading(self) -> None:
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().remove_reader(self._child.fileno())


@asynccontextmanager
async def opened(runtime: ProcessRuntime, access: ModelAccess, launch: Launch) -> AsyncIterator[Terminal]:
    """Starts what `launch` says, in the workspace; ends it and all that it has started with the context."""
    command = launch.command if isinstance(launch.command, str) else shlex.join(launch.command)
    own = {RUNTIME_MARK: runtime.folder.name, "TERM": "xterm-256color"}
    env = runtime.environment() | access.env | dict(launch.env) | own
    cwd = str(runtime.workspace)
    child = pexpect.spawn("bash", ["-c", command], env=env, cwd=cwd, dimensions=(ROWS, COLUMNS), echo=False)
    child.delaybeforesend = None
    terminal = Terminal(child)
    try:
        yield terminal
    finally:
        await runtime.kill_all()
        await terminal.close()
