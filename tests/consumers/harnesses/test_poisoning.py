"""Neither a registry nor a program on this host changes what a harness runs: a small CLI from a stand-in for the npm registry."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import structlog

from consumers.harnesses.pypi import PypiCli
from tests.consumers.harnesses.tool import Tool
from topics.environment import cache
from topics.types.agent import AgentSpec
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.contract

GOOD = "console.log('good')\n"
EVIL = "console.log('evil')\n"
CLI = Tool.cli


def archive(script: str, version: str = CLI.version) -> bytes:
    """A package of the npm registry."""
    contents = io.BytesIO()
    manifest = json.dumps({"name": CLI.package, "version": version, "bin": {"tool": "cli.js"}})
    with tarfile.open(fileobj=contents, mode="w:gz") as tar:
        for name, text in (("package.json", manifest), ("cli.js", script)):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return contents.getvalue()


def integrity(packed: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()


@contextmanager
def registry(packed: bytes) -> Iterator[str]:
    """The URL of a server that stands in for the npm registry, and vouches for the archive that it serves."""

    class Registry(BaseHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            dist = {"tarball": f"{url}/tool/-/tool-{CLI.version}.tgz", "integrity": integrity(packed)}
            versions = {CLI.version: {"name": CLI.package, "version": CLI.version, "dist": dist}}
            about = {"name": CLI.package, "dist-tags": {"latest": CLI.version}, "versions": versions}
            body = packed if self.path.endswith(".tgz") else json.dumps(about).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    url = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@pytest.fixture
def locked(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The archive whose hash is in the lock."""
    good = archive(GOOD)
    packages = {
        "": {"dependencies": {CLI.package: CLI.version}},
        f"node_modules/{CLI.package}": {
            "version": CLI.version,
            "integrity": integrity(good),
            "bin": {"tool": "cli.js"},
        },
    }
    lock = tmp_path / "tool.json"
    lock.write_text(json.dumps({"lockfileVersion": 3, "packages": packages}))
    monkeypatch.setenv("TOOL_LOCK", str(lock))
    return good


def program() -> Path:
    return CLI.folder / "node_modules" / CLI.program


def poison() -> None:
    """As a program does that runs as the worker's user."""
    program().chmod(0o644)
    program().write_text(EVIL)
    program().chmod(0o444)


async def installed() -> None:
    await Tool(AgentSpec(harness="tool")).install()


async def test_a_lock_without_addresses_installs_from_any_registry_and_refuses_another_archive(
    locked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(archive(EVIL)) as url:
        monkeypatch.setenv("npm_config_registry", url)
        with pytest.raises(NotReadyError, match="npm reported: code EINTEGRITY"):
            await installed()
        assert not CLI.folder.exists()
        assert not CLI.manifest.exists()
    with registry(locked) as url:
        monkeypatch.setenv("npm_config_registry", url)
        await installed()
    assert program().read_text() == GOOD
    assert CLI.fault(CLI.folder) is None
    assert not [path for path in (CLI.folder, *CLI.folder.rglob("*")) if path.stat().st_mode & 0o222]


async def test_a_changed_file_is_found_before_the_next_session_and_replaced(
    locked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(locked) as url:
        monkeypatch.setenv("npm_config_registry", url)
        await installed()
        poison()
        with structlog.testing.capture_logs() as logs:
            await installed()
    assert program().read_text() == GOOD
    lines = [line["event"] for line in logs]
    assert f"{program()} was changed after its installation; tool is installed again" in lines
    assert {"action": "harness.touched", "path": str(program())}.items() <= logs[0].items()


@pytest.mark.hard
async def test_a_changed_file_is_never_used_where_it_cannot_be_replaced(
    locked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(locked) as url:
        monkeypatch.setenv("npm_config_registry", url)
        await installed()
    poison()
    for _ in range(2):
        with pytest.raises(NotReadyError, match="can't be reached"):
            await installed()


async def test_a_worker_that_starts_finds_what_was_changed_before(
    locked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(locked) as url:
        monkeypatch.setenv("npm_config_registry", url)
        CLI.install(lambda _: None)
        poison()
        await installed()
    assert program().read_text() == GOOD


async def test_an_untouched_installation_is_verified_once_by_each_process(
    locked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(locked) as url:
        monkeypatch.setenv("npm_config_registry", url)
        await asyncio.gather(*(installed() for _ in range(3)))
    CLI.manifest.unlink()  # a verification would miss it, and no registry is there
    await installed()
    assert program().read_text() == GOOD


@dataclass(frozen=True)
class Wheel(PypiCli):
    folder_of_locks: Path

    @property
    def lock(self) -> Path:
        return self.folder_of_locks / "requirements.txt"


def wheel(folder: Path, source: str) -> bytes:
    """A package of the Python Package Index."""
    path = folder / "small_tool-1.0-py3-none-any.whl"
    info = "small_tool-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("small_tool.py", source)
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small-tool\nVersion: 1.0\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", f"small_tool.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path.read_bytes()


@pytest.mark.hard
def test_an_index_with_another_wheel_than_the_locks_is_refused(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Wheel("small_tool", "small-tool", "1.0", 1, (), "small_tool", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    good = hashlib.sha256(wheel(tmp_path, "print('good')")).hexdigest()
    cli.lock.write_text(f"small-tool==1.0 \\\n    --hash=sha256:{good}\n")
    wheel(tmp_path, "print('evil')")
    with pytest.raises(NotReadyError, match="DO NOT MATCH THE HASHES"):
        cli.install(lambda _: None)
    assert not cli.folder.exists()
    cli.lock.write_text("small-tool==1.0\n")
    with pytest.raises(NotReadyError, match="Hashes are required"):
        cli.install(lambda _: None)
    assert not list(cache.root().glob("small_tool*"))
