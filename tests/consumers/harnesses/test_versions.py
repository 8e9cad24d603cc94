"""`agent.version`: a small CLI from stand-ins for the npm registry and the Python Package Index, in both wire forms."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import socket
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from consumers.harnesses import cli as clis
from consumers.harnesses.base import harness_of
from consumers.harnesses.cli import CliHarness
from consumers.harnesses.data_harness import InstalledData
from polar.task_bodies import sized_body
from tests.consumers.harnesses.test_poisoning import archive, integrity
from topics.environment import registry
from topics.environment.registry import PRESETS
from topics.types.agent import AgentSpec
from topics.types.errors import InputError, NotReadyError
from topics.types.task import parse

NPM = "install = {npm = 'tool', version = '1.0.0', program = 'tool/cli.js', megabytes = 1}\n"
PYPI = "install = {pypi = 'small-tool', version = '1.0', module = 'small_tool', megabytes = 1}\n"
JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Index:
    """Serves bytes by path, and lists what was requested."""

    url: str
    requests: list[str]
    files: dict[str, tuple[str, bytes]]
    """Media type and body, by path."""

    def has_npm(self, packages: Mapping[str, bytes]) -> None:
        """Serve `tool` at these versions."""
        about: dict[str, object] = {}
        for version, packed in packages.items():
            path = f"/tool/-/tool-{version}.tgz"
            dist = {"tarball": f"{self.url}{path}", "integrity": integrity(packed)}
            about[version] = {"name": "tool", "version": version, "dist": dist, "bin": {"tool": "cli.js"}}
            self.files[path] = "application/octet-stream", packed
        latest = {"latest": next(iter(packages))}
        body = json.dumps({"name": "tool", "dist-tags": latest, "versions": about}).encode()
        self.files["/tool"] = "application/json", body

    def has_pypi(self, *versions: str) -> None:
        """Serve `small-tool` at these versions."""
        listed = []
        for version in versions:
            name = f"small_tool-{version}-py3-none-any.whl"
            packed = wheel(version)
            self.files[f"/files/{name}"] = "application/octet-stream", packed
            hashes = {"sha256": hashlib.sha256(packed).hexdigest()}
            listed.append({"filename": name, "url": f"{self.url}/files/{name}", "hashes": hashes})
        body = json.dumps({"meta": {"api-version": "1.0"}, "name": "small-tool", "files": listed}).encode()
        self.files["/simple/small-tool/"] = JSON, body


def wheel(version: str) -> bytes:
    contents, info = io.BytesIO(), f"small_tool-{version}.dist-info"
    with zipfile.ZipFile(contents, "w") as packed:
        packed.writestr("small_tool.py", f"print('{version}')")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: small-tool\nVersion: {version}\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", f"small_tool.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return contents.getvalue()


@contextmanager
def serving() -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            found.requests.append(self.path)
            media, body = found.files.get(self.path, ("application/json", b"{}"))
            self.send_response(200 if self.path in found.files else 404)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Index(f"http://127.0.0.1:{server.server_port}", [], {})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `POLAR_PRESETS`, with the harnesses `of_npm` and `of_pypi`."""
    monkeypatch.setenv(PRESETS, str(tmp_path))
    monkeypatch.setattr(clis, "_checked", set())
    (tmp_path / "of_npm.toml").write_text(NPM)
    (tmp_path / "of_pypi.toml").write_text(PYPI)
    return tmp_path


@pytest.fixture
def index(presets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(clis, "ASK_S", 60.0)  # npm and pip start slowly on a busy machine
    with serving() as found:
        uses(found.url, monkeypatch, presets)
        found.has_npm({version: archive(f"console.log('{version}')\n", version) for version in ("1.0.0", "1.1.0")})
        found.has_pypi("1.0", "1.1")
        yield found


def uses(url: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Configure npm and pip as people do."""
    monkeypatch.setenv("npm_config_registry", url)
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def submitted(harness: str, version: str | None) -> bytes:
    """A task's body, as `Client.submit` sends it. Raises what a submission raises."""
    agent = {"harness": harness} | ({} if version is None else {"version": version})
    return sized_body(parse({"task_id": "t", "instruction": "i", "agent": agent}))


def cli_of(harness: str, version: str | None) -> clis.Cli:
    found = harness_of(AgentSpec(harness=harness, version=version))
    assert isinstance(found, CliHarness)
    return found.cli


def test_a_harness_that_installs_no_cli_refuses_a_version_by_its_name() -> None:
    shell = {"harness": "shell", "custom_shell": {"command": "x"}, "version": "1.0.0"}
    with pytest.raises(InputError, match=r"^agent\.version: shell installs no CLI; leave it out.*got '1\.0\.0'"):
        parse({"task_id": "t", "instruction": "i", "agent": shell})


def test_a_program_that_is_in_the_sandbox_has_no_version_to_choose(presets: Path) -> None:
    (presets / "found.toml").write_text("program = 'found'\n")
    with pytest.raises(InputError, match=r"^agent\.version: found installs no CLI"):
        submitted("found", "1.0.0")


@pytest.mark.parametrize("harness", ["of_npm", "of_pypi"])
@pytest.mark.parametrize(
    "version", ["latest", "^1.0.0", "1.x", "1.*", ">1", "../../1.0.0", "--global", "1.0.0 ", "1.0.0\n"]
)
def test_what_an_installer_takes_for_a_range_or_an_option_is_no_version(
    harness: str, version: str, presets: Path
) -> None:
    with pytest.raises(InputError, match=r"^agent\.version: must be one exact version"):
        harness_of(AgentSpec(harness=harness, version=version))


def test_npms_ranges_of_numbers_are_no_versions_either(presets: Path) -> None:
    for version in ("1.1", "1.1.0+build"):
        with pytest.raises(InputError, match=r"must be one exact version of tool, like 1\.0\.0"):
            harness_of(AgentSpec(harness="of_npm", version=version))


def test_pips_versions_are_equal_by_their_numbers(presets: Path) -> None:
    cli = cli_of("of_pypi", "1.1.0")
    assert cli.is_among(["1.2", "1.1"])
    assert not cli.is_among(["1.1.1", "1.10"])


@pytest.mark.parametrize("name", [name for name in registry.names(registry.Kind.HARNESS) if name != "shell"])
def test_each_presets_own_version_is_its_locked_one_named_or_not(name: str) -> None:
    locked = registry.load(registry.Kind.HARNESS, name).cli
    assert cli_of(name, None) is cli_of(name, locked.version) is locked
    other = cli_of(name, "0.0.1")
    assert (other.version, other.is_locked) == ("0.0.1", False)
    later = replace(locked, version="0.0.1")  # the preset of a later Polar
    assert len({cli.folder for cli in (locked, other, later)}) == 3, "what has no lock never passes for what has one"


@pytest.mark.contract
def test_a_task_with_a_version_keeps_it_and_a_task_without_one_has_the_bytes_of_before(index: Index) -> None:
    assert json.loads(submitted("of_npm", "1.1.0"))["agent"]["version"] == "1.1.0"
    assert "version" not in json.loads(submitted("of_npm", None))["agent"]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("harness", "known", "unknown", "newest", "asked"),
    [
        ("of_npm", "1.1.0", "1.2.0", "npm finds no such version of tool; the newest are: 1.1.0, 1.0.0;", "/tool"),
        ("of_pypi", "1.1", "1.2", "pip finds no such version of small-tool; the newest are: 1.1, 1.0;", "/simple/"),
    ],
)
def test_a_version_that_the_configured_index_lacks_is_refused_when_a_task_is_submitted(
    harness: str, known: str, unknown: str, newest: str, asked: str, index: Index
) -> None:
    with pytest.raises(InputError, match=newest) as raised:
        submitted(harness, unknown)
    assert (raised.value.field, raised.value.value) == ("agent.version", repr(unknown))
    assert all(path.startswith(asked) for path in index.requests)
    index.requests.clear()
    for _ in range(3):
        submitted(harness, known)
    assert len(index.requests) == 1, "a feed of thousands of tasks asks once"
    submitted(harness, None)
    submitted(harness, cli_of(harness, None).version)
    assert len(index.requests) == 1, "nobody asks for the preset's own version"


@pytest.mark.contract
def test_a_refusal_names_releases_and_no_nightly_builds(index: Index) -> None:
    nightly = [f"1.2.0-nightly.{day}" for day in range(9)]
    index.has_npm(dict.fromkeys(("1.0.0", "1.1.0", *nightly), b""))
    with pytest.raises(InputError, match=r"the newest are: 1\.1\.0, 1\.0\.0;"):
        submitted("of_npm", "9.9.9")
    submitted("of_npm", nightly[0])


@pytest.mark.contract
@pytest.mark.parametrize(("harness", "version"), [("of_npm", "9.9.9"), ("of_pypi", "9.9")])
def test_a_version_is_accepted_if_the_index_does_not_answer(
    harness: str, version: str, presets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clis, "ASK_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uses(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch, presets)
        began = time.monotonic()
        for _ in range(5):
            submitted(harness, version)
        assert time.monotonic() - began < 4, "it is asked once"
        with pytest.raises(NotReadyError):
            cli_of(harness, version).listed_versions(0.5)
    uses("http://127.0.0.1:9", monkeypatch, presets)
    with pytest.raises(NotReadyError):
        cli_of(harness, version).listed_versions(30)


async def printed(cli: clis.Cli) -> str:
    started = await asyncio.create_subprocess_exec(*cli.command(), stdout=asyncio.subprocess.PIPE)
    return (await started.communicate())[0].decode().strip()


@pytest.mark.contract
async def test_a_session_runs_the_version_of_its_task_without_a_lock(index: Index, empty_cache: Path) -> None:
    harness = harness_of(AgentSpec(harness="of_npm", version="1.1.0"))
    assert isinstance(harness, InstalledData)
    await harness.install()
    assert harness.tools == (empty_cache / "of_npm-1.1.0-unlocked",)
    assert await printed(harness.cli) == "1.1.0"
    assert harness.cli.fault(harness.cli.folder) is None, "its manifest holds"
    assert "node_modules/tool" in json.loads((harness.cli.folder / "package-lock.json").read_text())["packages"]


@pytest.mark.contract
async def test_a_run_says_that_there_is_no_such_version_if_nobody_could_say_it_before(
    index: Index, empty_cache: Path
) -> None:
    with pytest.raises(InputError, match=f"npm finds no such version of tool in {index.url}") as raised:
        await harness_of(AgentSpec(harness="of_npm", version="9.9.9")).install()
    assert (raised.value.field, raised.value.value) == ("agent.version", "'9.9.9'")
    assert not list(empty_cache.glob("of_npm*"))


@pytest.mark.hard
async def test_a_version_of_a_python_cli_is_installed_without_a_lock(index: Index, empty_cache: Path) -> None:
    cli = cli_of("of_pypi", "1.1")
    cli.install(print)
    assert await printed(cli) == "1.1"
    with pytest.raises(InputError, match=f"pip finds no such version of small-tool in {index.url}"):
        cli_of("of_pypi", "9.9").install(print)
