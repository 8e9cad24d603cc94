"""What a run changed in the git work tree that it worked in, as a patch that `git apply` takes: committed or not, new files too.

A snapshot before the harness starts and one after it has ended are trees in a repository of our own in the runtime's home, which begins
as a copy of the task's index and hard links to its objects. So nothing is written to the task's repository, and after the run nothing
is read of it but the files: an agent may rewrite history, or delete `.git`, and what it wrote into its git's configuration, attributes
and hooks starts no program of its choosing here.

Left out: what `.gitignore` excludes, files beyond 16 MiB, changes inside nested repositories (their commit is told). A change too large,
and one that would carry a session's key inside a binary file, comes as text alone, cut off at the limit.

A patch is never worth a session: each step has a deadline of its own, and what can't be made is a log line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import structlog

from consumers.runtimes.base import LOG_LIMIT, Exec, Runtime, RuntimeFault
from topics.environment.keys import PREFIX
from topics.types.errors import InputError

STEP_S = 20.0
"""For one snapshot: 5,000 files take 0.1 s, or 0.5 s where the task's index doesn't know them. Less than the coordinator waits on
top of a run's budget."""
NOTHING = 40
"""The scripts' exit code for: no git, no repository, no change."""
LOGGED = 1000
"""Characters of git's words that a log line repeats."""

_BEGIN = r"""
command -v git >/dev/null || exit 40
unset $(git rev-parse --local-env-vars)
record() {  # the work tree as a tree; its id
    # A nested repository that is already known would be asked for changes by a git that follows its configuration.
    { git ls-files --stage | grep ^160000 | cut -f 2- | git update-index --force-remove --stdin; } || :
    {
        echo .
        find . -name .git -prune -o -type f -size +32768 -print | sed 's/^/:(exclude,literal)/'
    } | git add --all --ignore-errors --pathspec-from-file=- || [ $? -eq 1 ] || return  # 1: some files can't be read
    git write-tree
}
"""
_BEFORE = (
    _BEGIN
    + r"""
of() { git -C "$1" -c safe.directory='*' rev-parse "$2" "${@:3}"; }
if ! top=$(of . --show-toplevel 2>/dev/null); then
    set -- */.git
    [ $# -eq 1 ] && top=$(of "${1%/.git}" --show-toplevel 2>/dev/null) || exit 40
fi
set -e
cd "$top"
objects=$(of . --git-path objects) index=$(of . --git-path index) exclude=$(of . --git-path info/exclude)
format=$(of . --show-object-format)
rm -rf "$STORE"
mkdir -p "$STORE"
export GIT_DIR=$STORE GIT_WORK_TREE=$top
git init --quiet --template= --object-format="$format"
cat >>"$STORE/config" <<'END'
[core]
    fsync = none
    looseCompression = 0
    hooksPath = /dev/null
    attributesFile = /dev/null
    excludesFile = /dev/null
    safecrlf = false
    quotePath = false
[advice]
    addEmbeddedRepo = false
END
rm -r "$STORE/objects"
cp -al "$objects" "$STORE/objects" 2>/dev/null || cp -a "$objects" "$STORE/objects"
mkdir -p "$STORE/info"
if [ -f "$index" ]; then cp -p "$index" "$STORE/index"; fi  # -p: by its time git knows which entries to look at again
if [ -f "$exclude" ]; then cp "$exclude" "$STORE/info/exclude"; fi
tree=$(record)
echo "$tree $top"
"""
)
_AFTER = (
    _BEGIN
    + r"""
set -e
export GIT_DIR=$STORE GIT_COMMON_DIR=$STORE GIT_WORK_TREE=$TOP
cd -P "$TOP"
[ "$PWD" = "$TOP" ] || { echo "the work tree was replaced by a link to $PWD"; exit 1; }
rm -rf "$STORE/made"
mkdir "$STORE/made"
after=$(record)
[ "$after" != "$BEFORE" ] || exit 40
changes() { git diff --no-ext-diff --no-textconv "$@" "$BEFORE" "$after"; }
up_to() { head -c "$LIMIT" >"$1"; cat >/dev/null; }
changes --binary | up_to "$STORE/made/whole"
if grep -aq '^GIT binary patch$' "$STORE/made/whole"; then
    changes | up_to "$STORE/made/text"
    git diff-tree -r "$BEFORE" "$after" | cut -d ' ' -f 4 | git cat-file --batch --buffer | up_to "$STORE/made/contents"
fi
"""
)

_ENV = {"HOME": "/dev/null", "XDG_CONFIG_HOME": "/dev/null", "LC_ALL": "C"} | {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
}
"""Nothing that is set up for git on this host counts."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Snapshot:
    """A work tree before the run."""

    tree: str
    top: str
    """The work tree's root, as programs inside see it."""
    config: bytes
    """Of our repository; written anew before it is used again, as the agent could have changed it."""


async def snapshot(runtime: Runtime) -> Snapshot | None:
    """The repository that the runtime's working directory lies in, or else the only one directly below; None where there is none."""
    if await runtime.is_empty():
        return None  # as of many tasks, whose runs then need not wait for git
    store = _store(runtime)
    said = await _git(runtime, _BEFORE, {"STORE": str(store)})
    if said is None:
        return None
    tree, _, top = said.rstrip("\n").rpartition("\n")[2].partition(" ")
    try:
        return Snapshot(tree, top, await runtime.read_file(store / "config", LOG_LIMIT))
    except OSError as error:
        _complain(runtime, str(error))
        return None


async def changes(runtime: Runtime, before: Snapshot) -> bytes | None:
    """What has changed since, as a patch of at most LOG_LIMIT bytes and a line; None where nothing has, or it can't be told."""
    store = _store(runtime)
    env = {"STORE": str(store), "TOP": before.top, "BEFORE": before.tree, "LIMIT": str(LOG_LIMIT + 1)}
    try:
        await runtime.write_file(store / "config", before.config)
        if await _git(runtime, _AFTER, env, cwd=str(runtime.home)) is None:
            return None
        return await _made(runtime, store / "made")
    except (OSError, InputError) as error:
        _complain(runtime, str(error))
        return None


async def _made(runtime: Runtime, made: PurePosixPath) -> bytes:
    patch = await runtime.read_file(made / "whole", LOG_LIMIT + 1)
    if re.search(rb"^GIT binary patch$", patch, re.MULTILINE):
        # A key would not show there: the contents are compressed.
        contents = await runtime.read_file(made / "contents", LOG_LIMIT + 1)
        if max(len(patch), len(contents)) > LOG_LIMIT or PREFIX.encode() in contents:
            patch = await runtime.read_file(made / "text", LOG_LIMIT + 1)
    if len(patch) <= LOG_LIMIT:
        return patch
    return patch[: patch.rindex(b"\n", 0, LOG_LIMIT) + 1] + b"[... the rest is left out: this patch can't be applied]\n"


async def _git(runtime: Runtime, script: str, env: dict[str, str], cwd: str | None = None) -> str | None:
    """The end of a script's output; None where there was nothing to do, or it failed, which is said."""
    # A workspace inside the checkout of something else isn't that one's.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(runtime.workspace.parent)}
    try:
        ended = await runtime.exec(Exec(script, cwd=cwd, env=_ENV | ceiling | env, log="patch.log", timeout_s=STEP_S))
    except (RuntimeFault, InputError, OSError) as error:
        _complain(runtime, str(error))
        return None
    if ended.exit_code == NOTHING:
        return None
    if ended.exit_code != 0:
        why = f"took longer than {STEP_S:g} s" if ended.timed_out else f"exit code {ended.exit_code}"
        _complain(runtime, f"{why}; {ended.said}")
        return None
    return ended.tail


def _store(runtime: Runtime) -> PurePosixPath:
    return runtime.home / ".polar" / "patch"


def _complain(runtime: Runtime, why: str) -> None:
    log.warning("no patch of this run", action="patch.lost", runtime=dict(runtime.handle), why=why[-LOGGED:])
