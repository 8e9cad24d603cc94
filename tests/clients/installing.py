"""Installs clients into the user's cache: `client-NAME-VERSION`, or the newest version without any pins, `client-NAME-VERSION-newest`."""

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
UV = str(Path(sys.executable).with_name("uv"))


@dataclass(frozen=True)
class Installed:
    """How to start a client that is installed here."""

    version: str
    client: tuple[str, ...] = ()
    """The program of a client that is a program."""
    python: str = sys.executable
    """For programs that use a library."""
    modules: Path | None = None
    """`node_modules` with a library."""


Install = Callable[[bool], Installed]
"""Installs a client. With True it is the newest version that its index has, otherwise the pinned one."""


def of_preset(name: str) -> Install:
    """The CLI of a preset from the npm registry: at the preset's version, from its lock."""

    def install(newest: bool) -> Installed:
        harness = harness_of(AgentSpec(harness=name))
        assert isinstance(harness, CliHarness)
        cli = harness.cli.at(_newest_of_npm(harness.cli.package) if newest else None)
        cli.install(print)
        return Installed(cli.version, cli.command())

    return install


def of_pypi(module: str | None, *packages: str) -> Install:
    """`packages`: each with its version, the client's first. `module`: of a client that is a program."""

    def install(newest: bool) -> Installed:
        wanted = _unpinned(packages, "==", _newest_of_pypi) if newest else packages

        def build(folder: Path) -> None:
            _run(UV, "venv", "--quiet", "--python", sys.executable, str(folder))
            _run(UV, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *wanted)

        version, folder = _installed(wanted[0], "==", build, newest)
        python = str(folder / "bin" / "python")
        return Installed(version, (python, "-m", module) if module else (), python)

    return install


def of_npm(program: str | None, *packages: str) -> Install:
    """`packages`: as above. `program`: a script below `node_modules`."""

    def install(newest: bool) -> Installed:
        wanted = _unpinned(packages, "@", _newest_of_npm) if newest else packages

        def build(folder: Path) -> None:
            _run(*npm("install", "--prefix", str(folder), "--no-audit", "--no-fund", *wanted))

        version, folder = _installed(wanted[0], "@", build, newest)
        modules = folder / "node_modules"
        return Installed(version, (str(node()), str(modules / program)) if program else (), modules=modules)

    return install


def _unpinned(packages: tuple[str, ...], mark: str, newest_of: Callable[[str], str]) -> tuple[str, ...]:
    """The client at its newest version, and the other packages at any that fits."""
    client, *others = (package.rpartition(mark)[0] for package in packages)
    return (f"{client}{mark}{newest_of(client)}", *others)


def _newest_of_npm(package: str) -> str:
    return _run(*npm("view", package, "version", "--prefer-online"))


def _newest_of_pypi(package: str) -> str:
    """The newest for this Python. `package` may have extras."""
    compiling = (UV, "pip", "compile", "--quiet", "--refresh", "--no-deps", "--no-header", "--no-annotate", "-")
    return _run(*compiling, text=package).partition("==")[2]


def _installed(package: str, mark: str, build: Callable[[Path], None], newest: bool) -> tuple[str, Path]:
    """Version and folder."""
    name, _, version = package.rpartition(mark)
    entry = f"client-{name.strip('@').replace('/', '-').partition('[')[0]}-{version}{'-newest' if newest else ''}"

    def build_all(folder: Path) -> None:
        build(folder)
        (folder / DONE).touch()

    folder = cache.installed(entry, build_all, whole=lambda folder: (folder / DONE).exists(), announce=print)
    return version, folder


def _run(*command: str, text: str = "") -> str:
    """Its output."""
    # Install scripts of packages call node by its name.
    env = os.environ | {"PATH": f"{node().parent}:{os.environ['PATH']}"}
    return subprocess.run(command, input=text, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
