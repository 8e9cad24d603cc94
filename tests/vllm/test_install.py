"""`make vllm` keeps what is whole and sees what isn't; without vLLM itself, on folders that look like its environment."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.vllm_cpu import install
from topics.types.errors import NotReadyError


def environment(folder: Path, versions: dict[str, str]) -> Path:
    """What an environment with these packages looks like from outside."""
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name, version in versions.items():
        metadata_folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata_folder.mkdir(parents=True)
        (metadata_folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def test_every_package_is_pinned_to_one_version_and_nothing_else_is_said() -> None:
    lines = [line for line in install.PINS.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line) for line in lines)
    assert len(install.pins()) == len(lines)
    assert {"torch", "vllm-cpu", "transformers", "xgrammar", "aiokafka"} <= install.pins().keys()


def test_an_environment_with_all_its_packages_is_whole(tmp_path: Path) -> None:
    versions = install.pins() | {"vllm": install.VERSION, "pip": "24.0"}
    assert install.is_whole(environment(tmp_path, versions))


@pytest.mark.parametrize("spoilt", ["lacking", "another version", "no vllm", "no python"])
def test_one_that_lacks_something_is_not(tmp_path: Path, spoilt: str) -> None:
    versions = install.pins() | {"vllm": install.VERSION}
    match spoilt:
        case "lacking":
            del versions["xgrammar"]
        case "another version":
            versions["torch"] = "2.12.0"
        case "no vllm":
            del versions["vllm"]
    folder = environment(tmp_path, versions)
    if spoilt == "no python":
        (folder / "bin" / "python").unlink()
        (folder / "bin" / "python").symlink_to(tmp_path / "gone")
    assert not install.is_whole(folder)


def test_the_link_follows_the_pins_and_replaces_nothing_else(tmp_path: Path) -> None:
    old, new, at = tmp_path / "old", tmp_path / "new", tmp_path / ".venv-vllm"
    old.mkdir()
    new.mkdir()
    install.link(old, at)
    install.link(new, at)
    assert at.resolve() == new
    at.unlink()
    at.mkdir()
    with pytest.raises(NotReadyError, match="is no link of ours: move it away"):
        install.link(new, at)


def test_another_machine_is_refused_before_anything_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(NotReadyError, match="pinned for Linux on x86-64, and this is linux on riscv64"):
        install.environment(print)


def test_too_little_room_is_said_before_anything_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip unpacks beside what it installs."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_500_000_000))
    with pytest.raises(NotReadyError, match=r"has 10 GB free; vLLM takes 7, and 4 more .* set POLAR_CACHE"):
        install.environment(print)
