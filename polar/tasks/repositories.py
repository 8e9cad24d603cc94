"""Repositories of rows that have no image: as a file for each base commit, which holds that commit and its ancestors, and nothing later.

The file is a bundle of git's, which `runtime.prepare` uploads and turns into the workspace's repository. So no object that came after the
base commit, such as the fix, is in a sandbox. A bundle that is there isn't made again.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topics.environment import private_files
from topics.types.errors import InputError, NotReadyError

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
BRANCH = "main"
FETCH_S = 3600.0
"""Limit for fetching one repository."""

_UPLOADED = ".polar-repository.bundle"
_UNPACK = f"""\
git init --quiet .
git fetch --quiet --no-tags ./{_UPLOADED} refs/heads/{BRANCH}
git checkout --quiet -B {BRANCH} FETCH_HEAD
rm -f {_UPLOADED} .git/FETCH_HEAD
git config user.name agent && git config user.email agent@localhost
"""


def parse(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=PLACE` as names and places: a folder here, made absolute, or a URL that git can fetch from. Raises InputError."""
    found = {}
    for text in texts:
        name, _, place = text.partition("=")
        if not name or not place:
            raise InputError(
                "--repo", text, "must be NAME=PLACE: the row's repo, and a folder or URL of a git repository"
            )
        if "://" not in place and not Path(place).is_dir():
            raise InputError("--repo", text, f"there is no folder {place}; a URL has ://")
        found[name] = place if "://" in place else str(Path(place).absolute())
    return found


@dataclass
class Repositories:
    """The repositories of an import, and the bundles that its tasks upload."""

    places: Mapping[str, str]
    """Folder or URL by the row's `repo`."""
    folder: Path
    """Of the bundles."""
    _planned: dict[Path, tuple[str, str]] = field(default_factory=dict)
    """Repository and commit by bundle."""

    def prepare(self, repo: str, commit: Any) -> list[dict[str, Any]]:
        """Actions for `runtime.prepare` that put the repository into the workspace. Raises ValueError for a commit that is no full hash."""
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise ValueError("must be the whole hash of a commit")
        path = self.folder.absolute() / f"{re.sub(r'[^A-Za-z0-9_.-]+', '__', repo)}-{commit}.bundle"
        self._planned[path] = repo, commit
        return [
            {"type": "upload_file", "source": str(path), "target": _UPLOADED},
            {"type": "exec", "command": f"set -e\n{_UNPACK}"},
        ]

    def write(self, used: set[str]) -> None:
        """Make the bundles among the paths `used`. Raises InputError for a commit that a repository hasn't got."""
        for path, (repo, commit) in self._planned.items():
            if str(path) in used and not path.exists():
                private_files.make_folder(self.folder)
                _bundle(self.places[repo], repo, commit, path)


def _bundle(place: str, repo: str, commit: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetching-") as folder:
        _git(repo, folder, "init", "--quiet", "--bare", ".")
        _git(repo, folder, "fetch", "--quiet", "--no-tags", "--", place, f"{commit}:refs/heads/{BRANCH}")
        # One thread: equal commits give equal bytes, and so equal tasks.
        _git(repo, folder, "-c", "pack.threads=1", "bundle", "create", "--quiet", "made", f"refs/heads/{BRANCH}")
        (Path(folder) / "made").replace(path)


def _git(repo: str, folder: str, *arguments: str) -> None:
    try:
        ended = subprocess.run(
            ["git", "-c", "protocol.version=2", *arguments],
            cwd=folder, capture_output=True, text=True, errors="replace", check=False, timeout=FETCH_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise NotReadyError("--repo needs git; install it") from None
    except subprocess.TimeoutExpired:
        raise NotReadyError(f"--repo {repo}: git {arguments[0]} took longer than {FETCH_S:g} s") from None
    if ended.returncode != 0:
        why = ended.stderr.strip().splitlines()
        raise InputError("--repo", repo, f"git {arguments[0]} failed: {why[-1] if why else ended.returncode}")
