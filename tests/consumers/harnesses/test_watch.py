"""A watch notices every kind of change in a tree, by the kernel's notices and by looks at each file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.harnesses.watch import Looks, Notices, Watch

LONG_AGO = (1, 1)
WITHOUT_NOTICES = """
import resource, sys
from pathlib import Path
from consumers.harnesses.watch import Looks, Notices, Watch
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
print(Notices.of(Path(sys.argv[1])))
print(type(Watch(Path(sys.argv[1]))._source).__name__)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tool-1"
    (folder / "lib").mkdir(parents=True)
    for name in ("cli.js", "index.js"):
        (folder / "lib" / name).write_text("good()")
        os.utime(folder / "lib" / name, LONG_AGO)
    return folder


def write(tree: Path) -> None:
    with (tree / "lib" / "cli.js").open("r+") as file:
        file.write("evil()")


def chmod(tree: Path) -> None:
    (tree / "lib" / "cli.js").chmod(0o777)


def add(tree: Path) -> None:
    (tree / "lib" / "new.js").touch()


def remove(tree: Path) -> None:
    (tree / "lib" / "cli.js").unlink()


def replace(tree: Path) -> None:
    other = tree.with_name("other")
    other.write_text("evil()")
    other.replace(tree / "lib" / "cli.js")


def replace_all(tree: Path) -> None:
    tree.rename(tree.with_name("old"))
    (tree / "lib").mkdir(parents=True)


@pytest.mark.parametrize("source", [Notices.of, Looks])
@pytest.mark.parametrize("change", [write, chmod, add, remove, replace, replace_all])
def test_every_change_is_noticed(
    tree: Path, source: Callable[[Path], Notices | Looks | None], change: Callable[[Path], None]
) -> None:
    watching = source(tree)
    assert watching is not None
    assert (tree / "lib" / "cli.js").read_text() == "good()"
    assert watching.first() is None
    change(tree)
    found = watching.first()
    assert found is not None
    assert Path(found).is_relative_to(tree)


def test_a_watch_names_the_file_and_does_not_forget_it(tree: Path) -> None:
    watch = Watch(tree)
    assert watch.changed() is None
    write(tree)
    assert watch.changed() == watch.changed() == str(tree / "lib" / "cli.js")


@pytest.mark.contract
def test_without_notices_of_the_kernel_a_watch_looks_itself(tree: Path) -> None:
    """In a process of its own: without descriptors, threads of other tests would fail."""
    ended = subprocess.run([sys.executable, "-c", WITHOUT_NOTICES, tree], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("None\nLooks\n", "")
