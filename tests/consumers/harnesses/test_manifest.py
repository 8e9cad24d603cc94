"""A manifest finds every file of an installed tree that was changed, added or removed, and names it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.harnesses import manifest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tool-1"
    (folder / "lib" / "deep").mkdir(parents=True)
    (folder / "lib" / "deep" / "index.js").write_text("good()")
    (folder / "lib" / "data.json").write_text("{}")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o700)
    (folder / "link").symlink_to("lib")
    manifest.seal(folder, record(folder))
    return folder


def record(folder: Path) -> Path:
    return folder.with_name("tool-1.manifest.json")


def test_a_sealed_tree_is_read_only_and_differs_in_nothing(tree: Path) -> None:
    modes = {
        str(path.relative_to(tree)): stat.S_IMODE(path.lstat().st_mode)
        for path in (tree, *tree.rglob("*"))
        if not path.is_symlink()
    }
    assert modes == {
        ".": 0o555, "lib": 0o555, "lib/deep": 0o555, "lib/deep/index.js": 0o444, "lib/data.json": 0o444, "run": 0o555,
    }  # fmt: skip
    assert stat.S_IMODE(record(tree).stat().st_mode) == 0o600
    assert manifest.difference(tree, record(tree)) is None


def rewrite(tree: Path) -> str:
    """The same size and times: only the contents tell."""
    file = tree / "lib" / "deep" / "index.js"
    before = file.stat()
    file.chmod(0o644)
    file.write_text("evil()")
    file.chmod(0o444)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "lib/deep/index.js was changed"


def change_mode(tree: Path) -> str:
    (tree / "lib" / "data.json").chmod(0o555)
    return "lib/data.json was changed"


def change_mode_of_a_folder(tree: Path) -> str:
    (tree / "lib" / "deep").chmod(0o777)
    return "lib/deep was changed"


def add(tree: Path) -> str:
    (tree / "lib").chmod(0o755)
    (tree / "lib" / "sitecustomize.py").touch()
    (tree / "lib").chmod(0o555)
    return "lib/sitecustomize.py was added"


def remove(tree: Path) -> str:
    (tree / "lib" / "deep").chmod(0o755)
    (tree / "lib" / "deep" / "index.js").unlink()
    (tree / "lib" / "deep").chmod(0o555)
    return "lib/deep/index.js was removed"


def replace_by_a_link(tree: Path) -> str:
    other = tree.with_name("other")
    other.write_text("{}")
    (tree / "lib").chmod(0o755)
    (tree / "lib" / "data.json").unlink()
    (tree / "lib" / "data.json").symlink_to(other)
    (tree / "lib").chmod(0o555)
    return "lib/data.json was changed"


def turn_a_link(tree: Path) -> str:
    tree.chmod(0o755)
    (tree / "link").unlink()
    (tree / "link").symlink_to("/tmp")
    tree.chmod(0o555)
    return "link was changed"


@pytest.mark.parametrize(
    "change", [rewrite, change_mode, change_mode_of_a_folder, add, remove, replace_by_a_link, turn_a_link]
)
def test_a_change_is_found_by_name(tree: Path, change: Callable[[Path], str]) -> None:
    expected = change(tree)
    assert manifest.difference(tree, record(tree)) == f"{tree}/{expected} after its installation"


@pytest.mark.parametrize("contents", ["", "[", "[]", "7"])
def test_a_tree_with_a_broken_manifest_is_not_verified(tree: Path, contents: str) -> None:
    record(tree).write_text(contents)
    assert "can't be verified" in (manifest.difference(tree, record(tree)) or "")


def test_a_tree_without_a_manifest_is_not_verified(tree: Path) -> None:
    record(tree).unlink()
    assert "can't be verified" in (manifest.difference(tree, record(tree)) or "")


def test_a_tree_that_is_sealed_again_gets_the_new_manifest(tree: Path) -> None:
    rewrite(tree)
    manifest.seal(tree, record(tree))
    assert manifest.difference(tree, record(tree)) is None
