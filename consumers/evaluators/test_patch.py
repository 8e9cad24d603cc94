"""Brings a task's test patch into the workspace that the run left, without trusting anything there.

The patch is applied to the files as `runtime.prepare` left them, which `protection` keeps, in a folder that no agent had. The result then
takes the place of whatever the run left at the patch's paths. The workspace's repository is the agent's by then, so git isn't asked for
the tests' old content and reads none of the repository's settings.
"""

from __future__ import annotations

import re
import secrets
import shlex
from pathlib import PurePosixPath

from consumers.evaluators.base import EvaluationError
from consumers.evaluators.command import OUTPUT, ObstructedError
from consumers.evaluators.protection import STORE
from consumers.runtimes.base import Exec, Runtime, raise_fault
from topics.types.errors import InputError

PATCH_S = 60.0
"""Limit for applying a patch."""

_HEADER = re.compile(r'^diff --git (?:"a/(.+?)"|a/(.+?)) (?:"b/(.+)"|b/(.+))$', re.MULTILINE)
_DOES_NOT_APPLY = 41
_NO_GIT = 42
_APPLY = f"""
command -v git >/dev/null || exit {_NO_GIT}
mkdir -p -- "$FOLDER/files" && cd "$FOLDER/files" || exit
for path in "$@"; do
    ! tar --list --file="$STORE" -- "./$path" >/dev/null 2>&1 || tar --extract --file="$STORE" -- "./$path" || exit
done
git apply --check --whitespace=nowarn "$FOLDER/patch" 2>&1 || exit {_DOES_NOT_APPLY}
git apply --whitespace=nowarn "$FOLDER/patch" 2>&1 || exit 1  # its files can't be written: the run's may fill the disk
cd "$WORKSPACE" || exit
for path in "$@"; do
    folder=$path
    while [ "${{folder%/*}}" != "$folder" ]; do
        folder=${{folder%/*}}
        [ ! -L "./$folder" ] || {{ echo "$folder is a symbolic link"; exit 1; }}
    done
    rm -rf -- "./$path" || exit
    [ ! -e "$FOLDER/files/$path" ] || tar --directory="$FOLDER/files" --create -- "./$path" | tar --extract || exit
done
rm -rf -- "$FOLDER"
"""


def paths_of(patch: str) -> tuple[str, ...]:
    """The files that a patch of git's format changes, adds, renames or deletes, relative to the repository.

    Raises ValueError if it names none, or one outside of the repository or in `.git`.
    """
    found: dict[str, None] = {}
    for header in _HEADER.findall(patch):
        for path in filter(None, header):
            parts = PurePosixPath(path).parts
            if path.startswith("/") or ".." in parts or ".git" in parts or "\\" in path:
                raise ValueError(f"names {path!r}; paths are relative to the repository, without .., .git and escapes")
            found[path] = None
    if not found:
        raise ValueError("has no line `diff --git a/FILE b/FILE`")
    return tuple(found)


async def apply(runtime: Runtime, patch: str, paths: tuple[str, ...]) -> None:
    """Replace the files at `paths` by what the patch makes of them as `prepare` left them.

    Raises ObstructedError for what the run left, EvaluationError for a patch that doesn't apply, and SandboxError.
    """
    folder = runtime.home / f"polar-tests-{secrets.token_hex(16)}"
    env = {
        "FOLDER": str(folder),
        "STORE": str(runtime.home / STORE),
        "WORKSPACE": str(runtime.workspace),
        "GIT_CEILING_DIRECTORIES": str(folder),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "LC_ALL": "C",
    }
    try:
        await runtime.write_file(folder / "patch", patch.encode(errors="surrogateescape"))
        script = shlex.join(["set", "--", *paths]) + _APPLY
        await runtime.write_file(folder / "apply.sh", script.encode())
        argv = ("bash", "-p", "-o", "pipefail", str(folder / "apply.sh"))
        what = Exec(argv, cwd=str(runtime.home), env=env, log="test_patch.log", timeout_s=PATCH_S, is_ours=True)
        result = await runtime.exec(what)
    except (InputError, OSError) as error:
        raise_fault(error)
        raise ObstructedError(f"couldn't get its tests: {error}") from error
    if result.exit_code in (_DOES_NOT_APPLY, _NO_GIT):
        why = {
            _DOES_NOT_APPLY: "doesn't apply to the files that runtime.prepare left",
            _NO_GIT: "needs the program git in the sandbox; install it in the image",
        }[result.exit_code]
        message = f"evaluator.config.test_patch {why} ({result.output_end})"
        raise EvaluationError("test_patch", message, {OUTPUT: result.output()})
    if result.exit_code != 0:
        raise ObstructedError(f"couldn't get its tests, since files of the run are in the way: {result.output_end}")
