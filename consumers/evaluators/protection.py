"""Keeps an agent's files from steering a test runner: what the runner reads or runs by itself is as `runtime.prepare` left it.

`keep` runs at the end of INIT, before any agent, and stores the files in the home. `restore` runs in the evaluation, before
`runtime.eval_prepare` brings tests, and takes them from the home as `prepare` left it, which no run can change (in the runtime `process`
it can, as in `landlock`). It removes what the run added, and puts back what the run changed or removed:

- files that pytest or Python run without being named (STEERING);
- files with pytest's settings (CONFIGURATION), if the run changed these settings; its other changes stay;
- compiled modules, which Python would run in place of their source; none is put back;
- modules that hide one of the standard library or of pytest (HIDEABLE), in the working directory and in folders that are no packages;
- the paths of the setting `protected`, with all that lies below them.

Other code that the tests import and run is the agent's work, and isn't touched.
"""

from __future__ import annotations

import asyncio
import io
import os.path
import re
import secrets
import shlex
import sys
import tarfile
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from consumers.evaluators import settings
from consumers.evaluators.command import ObstructedError
from consumers.runtimes.base import LOG_LIMIT, Exec, ExecResult, Runtime, raise_fault
from topics.types.errors import InputError

FIELD = "evaluator.config.protected"
STEERING = frozenset(
    (
        *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
        *("sitecustomize.py", "usercustomize.py", "entry_points.txt"),
    )
)
"""`entry_points.txt`: a folder `x.dist-info` with it, in the working directory, is an installed plug-in for pytest."""
CONFIGURATION = frozenset(("pyproject.toml", "setup.cfg", "tox.ini"))
HIDEABLE = (sys.stdlib_module_names - {"test"}) | {
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "py"),
    *("_hypothesis_pytestplugin", "hypothesis", "anyio", "xdist", "execnet", "coverage"),
}
"""Modules that a test runner imports at its start. `test` isn't one: it is a usual name for a folder of tests."""
PLUG_IN = "pytest_"
"""The names of most of pytest's plug-ins begin so; a runner imports all that are installed."""
STEP_S = 60.0
"""Limit of one program here; to list 100,000 files takes 0.5 s."""
SETTINGS_LIMIT = 256 * 1024
"""Bytes of a file with settings. A larger one counts as changed."""
DOTS_LIMIT = 100
"""Dots in a line of TOML. A file with more counts as changed: Python's parser takes quadratic time for a key of many parts."""

STORE = PurePosixPath(".polar", "protected.tar")
"""Below the home."""
_CACHE = "__pycache__"
_PACKAGE = "__init__.py"
_LIST = """printf '%s\\0' "$PWD"; cd "$WORKSPACE" && find . \\( TESTS \\) -print0 2>/dev/null"""
_OUTSIDE_OF_REPOSITORIES = "! -name .git ! -path '*/.git/*'"
_KEEP = 'cd "$WORKSPACE" && tar --create --no-recursion --null --files-from="$FILES" --file="$STORE"'
_RESTORE = """\
cd "$WORKSPACE" && xargs -0 -r rm -rf -- <"$REMOVED" || exit
[ ! -s "$RESTORED" ] || tar --extract --no-recursion --null --files-from="$RESTORED" --file="$STORE"
"""
_HEADER = re.compile(r"\[[^#;]*\][ \t]*(?:[#;]|$)")
"""A line that ends the section before it, as pytest's parser of INI files finds it. A line that begins with a bracket and has no closing
one continues the value before."""


@dataclass(frozen=True)
class Steering:
    """The files of a workspace that steer a test runner: paths like `./a/b`, relative to the workspace."""

    plain: frozenset[str]
    """STEERING, and what lies below the paths of the setting."""
    configuration: frozenset[str]
    compiled: frozenset[str]
    hiding: frozenset[str]

    @classmethod
    def among(cls, found: Collection[str], workdir: PurePosixPath, paths: Sequence[str]) -> Steering:
        """`workdir`: where the tests start, relative to the workspace. `paths`: the setting `protected`."""
        names = {path: PurePosixPath(path).name for path in found}
        tops = {PurePosixPath(), workdir}
        plain = {path for path, name in names.items() if name in STEERING or _is_below(path, paths)}
        compiled = {path for path, name in names.items() if name == _CACHE or name.endswith(".pyc")}
        packages = {PurePosixPath(path).parent for path, name in names.items() if name == _PACKAGE}
        return cls(
            frozenset(plain),
            frozenset(path for path, name in names.items() if name in CONFIGURATION) - plain,
            frozenset(compiled),
            frozenset(path for path in names if _hides(PurePosixPath(path), packages, tops)) - plain - compiled,
        )


class Protection:
    """`keep` and `restore` of `base.Protecting`, for evaluators with the setting `protected`."""

    def __init__(self, protected: Sequence[str] | Literal[False], others: Sequence[str] = ()) -> None:
        """`protected`: the setting; False: no file is protected. `others`: further paths. Raises InputError."""
        if protected and not all(map(_is_path, protected)):
            raise settings.refused("protected", protected, settings.PROTECTED)
        self._paths = None if protected is False else (*protected, *others)

    async def keep(self, runtime: Runtime) -> None:
        if self._paths is not None:
            await keep(runtime, self._paths)

    async def restore(self, runtime: Runtime) -> str | None:
        try:
            if self._paths is not None:
                await restore(runtime, self._paths)
        except (ObstructedError, InputError, OSError) as error:
            raise_fault(error)
            return str(error)
        return None


async def keep(runtime: Runtime, paths: Sequence[str]) -> None:
    """Store the protected files, beside those that another evaluator of the session has stored.

    Raises InputError if there are too many or they are too large.
    """
    if await runtime.is_empty():
        return
    try:
        found = Steering.among(*await _found(runtime, paths), paths)
        files = found.plain | found.configuration | found.hiding | (await _stored(runtime)).keys()
        if not files:
            return
        result = await _run(runtime, _KEEP, FILES=sorted(files))
        if result.exit_code != 0:
            raise ObstructedError(result.output_end)
        if len(await runtime.read_file(runtime.home / STORE, LOG_LIMIT + 1)) > LOG_LIMIT:
            raise ObstructedError(f"they exceed {LOG_LIMIT} bytes")
    except ObstructedError as error:
        raise InputError(FIELD, paths, f"the protected files can't be stored: {error}") from None


async def restore(runtime: Runtime, paths: Sequence[str]) -> None:
    """Undo what the run did to protected files. Raises ObstructedError, and InputError or OSError for a workspace that is gone."""
    if await runtime.is_empty():
        return
    stored = await _stored(runtime)
    found, workdir = await _found(runtime, paths)
    before, now = (Steering.among(each, workdir, paths) for each in (stored, found))
    same = {
        path
        for path in before.configuration | now.configuration
        if await asyncio.to_thread(_are_equal, path, stored.get(path, b""), await _content(runtime, path))
    }
    removed = now.plain | now.compiled | (now.configuration - same) | (now.hiding - before.hiding)
    restored = before.plain | (before.configuration - same)
    if removed or restored:
        result = await _run(runtime, _RESTORE, REMOVED=sorted(removed), RESTORED=sorted(restored))
        if result.exit_code != 0:
            raise ObstructedError(f"the protected files can't be put back: {result.output_end}")


def _is_below(path: str, paths: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(protected) for protected in paths)


def _hides(path: PurePosixPath, packages: Collection[PurePosixPath], tops: Collection[PurePosixPath]) -> bool:
    """Whether the file is a module that hides another one, as far as a runner looks for modules where it lies."""
    module = path.parent if path.name == _PACKAGE else path.with_name(path.name.partition(".")[0])
    is_hideable = module.name in HIDEABLE or module.name.startswith(PLUG_IN)
    return is_hideable and (module.parent in tops or module.parent not in packages)


async def _found(runtime: Runtime, paths: Sequence[str]) -> tuple[set[str], PurePosixPath]:
    """All paths that may steer and all modules of Python, and the working directory. Raises ObstructedError."""
    names = [*sorted(STEERING | CONFIGURATION), _CACHE, "*.py", "*.pyc", "*.so"]
    # Also in `.git`, into which a link may lead a runner.
    tests = [f"-name {shlex.quote(name)}" for name in names]
    for path in paths:
        literal = re.sub(r"([*?\[\\])", r"\\\1", f"./{PurePosixPath(path)}")
        tests += [f"-path {shlex.quote(pattern)} {_OUTSIDE_OF_REPOSITORIES}" for pattern in (literal, f"{literal}/*")]
    result = await _run(runtime, _LIST.replace("TESTS", " -o ".join(tests)))
    output = result.output()
    if result.exit_code != 0 or len(output) > LOG_LIMIT:
        raise ObstructedError("the files can't be listed: a folder can't be read, or they are too many")
    workdir, *found = output.decode(errors="surrogateescape").split("\0")
    return set(found) - {""}, PurePosixPath(os.path.relpath(workdir, runtime.workspace))


async def _run(runtime: Runtime, script: str, **lists: Sequence[str]) -> ExecResult:
    """Run a script with the store's path and with files of paths, each with a zero byte behind it, in variables."""
    folder = runtime.home / STORE.parent / secrets.token_hex(8)
    env = {"STORE": str(runtime.home / STORE), "WORKSPACE": str(runtime.workspace), "LC_ALL": "C"}
    for name, paths in lists.items():
        env[name] = str(folder / name)
        data = "".join(f"{path}\0" for path in paths)
        await runtime.write_file(folder / name, data.encode(errors="surrogateescape"))
    return await runtime.exec(Exec(("bash", "-p", "-c", script), env=env, log="protection.log", timeout_s=STEP_S))


async def _stored(runtime: Runtime) -> dict[str, bytes]:
    """Contents by path, as `keep` found them; empty for what is no file. Raises ObstructedError."""
    try:
        archive = await runtime.read_file(runtime.home / STORE, LOG_LIMIT + 1)
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as stored:
            return {member.name: _member(stored, member) for member in stored}
    except FileNotFoundError:
        return {}
    except (tarfile.TarError, ValueError, EOFError) as error:  # in the runtime `process` a run can replace it
        raise ObstructedError(f"the stored files can't be read: {error}") from None


def _member(stored: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = stored.extractfile(member) if member.isreg() else None
    return b"" if file is None else file.read()


async def _content(runtime: Runtime, path: str) -> bytes:
    """The file as the run left it; empty if there is none."""
    try:
        return await runtime.read_file(path, SETTINGS_LIMIT + 1)
    except FileNotFoundError:
        return b""


def _are_equal(path: str, one: bytes, other: bytes) -> bool:
    return one == other or _settings(path, one) == _settings(path, other)


def _settings(path: str, content: bytes) -> object:
    """Something that is equal for files with the same settings of pytest. Takes linear time, whatever the run wrote."""
    text = content.decode(errors="surrogateescape")
    if len(content) > SETTINGS_LIMIT:
        return text
    if not path.endswith(".toml"):
        return _pytest_sections(text)
    if any(line.count(".") > DOTS_LIMIT for line in text.split("\n")):
        return text
    try:
        return tomllib.loads(text).get("tool", {}).get("pytest")
    except (ValueError, AttributeError, RecursionError):
        return text


def _pytest_sections(text: str) -> list[list[str]]:
    """The lines of each section of an INI file that may be pytest's: its parser finds no other, and no later end of one."""
    sections: list[list[str]] = []
    is_within = False
    for line in text.splitlines():  # as pytest's parser does: also at a form feed and the like
        if not is_within or _HEADER.match(line):
            is_within = "pytest" in line.partition("[")[2]
            if is_within:
                sections.append([])
        if is_within:
            sections[-1].append(line)
    return sections


def _is_path(path: str) -> bool:
    """Whether it names something in the workspace, and nothing outside."""
    return (
        "\0" not in path
        and path.strip("./") != ""
        and not path.startswith("/")
        and ".." not in PurePosixPath(path).parts
    )
