"""The container engine: Docker's API, on Docker's socket or on Podman's compatible one (DOCKER_HOST), from asyncio.

The client is synchronous, so each call takes a thread. Its errors become `InputError` for what the task asks for, `SandboxError` for what
may succeed later, and `NotReadyError` if no engine answers.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import socket
import tarfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from consumers.runtimes.base import IMAGE_UNAVAILABLE, SandboxError
from consumers.runtimes.launch import to_the_end
from topics.types.errors import InputError, NotReadyError, install_command
from topics.waiting.backoff import Backoff

try:
    import docker
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException
except ImportError as missing:
    raise NotReadyError(
        f"the runtime 'docker' needs Docker's client; install it: {install_command('docker')}"
    ) from missing

DEFAULT_HOST = "unix:///var/run/docker.sock"
"""As Docker's client has it without DOCKER_HOST."""
CALL_S = 180.0
"""For one answer of the engine, and for its next message while it pulls; a start takes 0.5 s, on a busy host more."""
CALLS = 8
"""At once: more would only wait for one another in the engine."""
PULLS = 4
"""Tries to pull an image, before the session's attempt is given up."""
PAUSES = Backoff(first_s=2.0, longest_s=30.0, jitter=0.5)
"""Between these tries. A registry that says 429 means all sessions of this host, so they wait together, and others at other times."""
_FOR_EVER = (
    "not found",
    "manifest unknown",
    "denied",
    "unauthorized",
    "does not exist",
    "invalid reference",
    "no matching manifest",
    "invalid tar header",
    "gzip: invalid header",
)
"""Parts of an engine's message, in lower case, about an image that no other try gets: it is absent, or a layer is broken."""
_UNIX = "unix://"
_LATER = ("toomanyrequests", "too many requests", "rate limit")

T = TypeVar("T")


@dataclass(frozen=True)
class Image:
    """An image that is here. `workspace`: its working directory, which isn't `/`; empty if it has none."""

    id: str
    env: Mapping[str, str]
    workspace: str


class Engine:
    """One engine. It isn't asked anything before the first call."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(CALLS, thread_name_prefix="docker")
        self._pulling: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._connecting = threading.Lock()
        self._client: docker.DockerClient | None = None
        self._info: dict[str, Any] = {}

    async def call(self, work: Callable[[docker.DockerClient], T]) -> T:
        """Do `work` in a thread, to its end, even if we are cancelled: what it makes would otherwise appear after its removal.

        Raises SandboxError `engine_failed`, NotReadyError, and what `work` raises besides.
        """
        loop = asyncio.get_running_loop()
        return await to_the_end(loop.run_in_executor(self._threads, partial(self._do, work)))

    def _do(self, work: Callable[[docker.DockerClient], T]) -> T:
        client = self.connected()
        try:
            return work(client)
        except (DockerException, RequestException) as error:
            raise SandboxError("engine_failed", f"the container engine failed: {_text(error)}") from error

    def connected(self) -> docker.DockerClient:
        """The client, which reaches an engine. Blocks. Raises NotReadyError."""
        with self._connecting:
            if self._client is None:
                try:
                    _knock()
                    client = docker.from_env(timeout=CALL_S, max_pool_size=CALLS)
                    self._info = client.info()
                except (DockerException, RequestException, OSError) as error:
                    raise NotReadyError(
                        f"the runtime 'docker' reaches no container engine: {error}; start Docker, or Podman's service and set DOCKER_HOST "
                        "to its socket, and let this user use it"
                    ) from error
                self._client = client
                weakref.finalize(self, client.close)
            return self._client

    @property
    def info(self) -> dict[str, Any]:
        """The engine's own description. Blocks at the first use. Raises NotReadyError."""
        self.connected()
        return self._info

    async def image(self, name: str) -> Image:
        """The image `name`, which is pulled if it isn't here: once at a time, in several tries. Raises InputError if there is none that
        we may have, and SandboxError `image_unavailable`."""
        if (found := await self.call(lambda client: _image(client, name))) is not None:
            return found
        async with self._pulling[name]:
            found = await self.call(lambda client: _image(client, name))
            if found is None:
                await self._pulled(name)
                found = await self.call(lambda client: _image(client, name))
        if found is None:
            raise SandboxError(IMAGE_UNAVAILABLE, f"the image {name} was pulled and isn't there")
        return found

    async def _pulled(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        for failures in range(1, PULLS + 1):
            try:
                # Not `call`: a pull may go on after a cancellation, and whoever asks next waits for the rest of it.
                await loop.run_in_executor(self._threads, lambda: _pull(self.connected(), name))
            except SandboxError:
                if failures == PULLS:
                    raise
                await asyncio.sleep(PAUSES.pause_s(failures, random.random()))
            else:
                return


def _knock() -> None:
    """Connect to the engine's socket. Docker's client would leave a socket open that nobody answers at. Raises OSError."""
    host = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    if host.startswith(_UNIX):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.connect(host.removeprefix(_UNIX))


def _image(client: docker.DockerClient, name: str) -> Image | None:
    try:
        found = client.images.get(name)
    except NotFound:
        return None
    except APIError as error:
        if error.status_code == 400:
            raise InputError("runtime.image", name, f"is no name of an image: {_text(error)}") from error
        raise
    config = found.attrs.get("Config") or {}
    env = dict(variable.split("=", 1) for variable in config.get("Env") or () if "=" in variable)
    workspace = config.get("WorkingDir") or "/"
    return Image(str(found.id), env, "" if workspace == "/" else workspace)


def _pull(client: docker.DockerClient, name: str) -> None:
    """Raises InputError, SandboxError."""
    repository, tag = docker.utils.parse_repository_tag(name)
    try:
        for message in client.api.pull(repository, tag or "latest", stream=True, decode=True):
            if problem := message.get("error"):
                raise _unavailable(name, str(problem), 500)
    except APIError as error:
        raise _unavailable(name, _text(error), error.status_code or 500) from error
    except (DockerException, RequestException) as error:
        raise _unavailable(name, _text(error), 500) from error


def _unavailable(name: str, text: str, status: int) -> InputError | SandboxError:
    said = text.lower()
    is_for_ever = status in (400, 403, 404) or any(word in said for word in _FOR_EVER)
    if is_for_ever and status != 429 and not any(word in said for word in _LATER):
        return InputError(
            "runtime.image", name, f"can't be pulled: {text}; name one that the worker's engine finds and may pull"
        )
    return SandboxError(IMAGE_UNAVAILABLE, f"the image {name} can't be pulled now: {text}")


def gone_is_fine(work: Callable[[], object]) -> None:
    """Do `work`, which removes something that may be gone, or that another worker is removing."""
    try:
        work()
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != 409 or "in progress" not in _text(error):
            raise


def folders_of(uid: int, gid: int, folders: list[str]) -> bytes:
    """An archive for the root of a container, with folders of a user."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for folder in folders:
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, uid, gid
            archive.addfile(entry)
    return made.getvalue()


def _text(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)
