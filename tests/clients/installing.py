"""Installs clients at one version each, into the user's cache: `client-NAME-VERSION`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from consumers.harnesses.base import harness_of
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.npm import node, npm
from topics.environment import cache
from topics.types.agent import AgentSpec

DONE = "installed"
"""A file that is written last."""
Command = tuple[str, ...]


@dataclass(frozen=True)
class Installed:
    """How to start a client that is installed here."""

    version: str
    client: Command = ()
    """The program of a client that is a program."""
    python: str = sys.executable
    """For programs that use a library."""
    modules: Path | None = None
    """`node_modules` with a library."""


def of_preset(name: str) -> Installed:
    """The CLI of a preset, at the preset's version."""
    harness = harness_of(AgentSpec(harness=name))
    assert isinstance(harness, CliHarness)
    harness.cli.install(print)
    return Installed(harness.cli.version, harness.cli.command())


def of_pypi(module: str | None, *packages: str) -> Installed:
    """`packages`: each with its version, the client's first. `module`: of a client that is a program."""

    def build(folder: Path) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *packages)

    version, folder = _installed(packages[0], "==", build)
    python = str(folder / "bin" / "python")
    return Installed(version, (python, "-m", module) if module else (), python)


def of_npm(program: str | None, *packages: str) -> Installed:
    """`packages`: as above. `program`: a script below `node_modules`."""

    def build(folder: Path) -> None:
        _run(*npm("install", "--prefix", str(folder), "--no-audit", "--no-fund", *packages))

    version, folder = _installed(packages[0], "@", build)
    modules = folder / "node_modules"
    return Installed(version, (str(node()), str(modules / program)) if program else (), modules=modules)


def _installed(package: str, mark: str, build: Callable[[Path], None]) -> tuple[str, Path]:
    """Version and folder."""
    name, _, version = package.rpartition(mark)
    entry = f"client-{name.strip('@').replace('/', '-').partition('[')[0]}-{version}"

    def build_all(folder: Path) -> None:
        build(folder)
        (folder / DONE).touch()

    folder = cache.installed(entry, build_all, whole=lambda folder: (folder / DONE).exists(), announce=print)
    return version, folder


def _run(*command: str) -> None:
    # Install scripts of packages call node by its name.
    path = f"{node().parent}:{os.environ['PATH']}"
    subprocess.run(command, env=os.environ | {"PATH": path}, check=True)
