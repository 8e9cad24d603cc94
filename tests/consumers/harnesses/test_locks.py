"""The committed locks: the preset's own version, a hash for everything, every Linux platform, and no address."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from consumers.harnesses.cli import Cli
from consumers.harnesses.npm import NpmCli
from consumers.harnesses.pypi import PypiCli
from topics.environment import registry

LOADED = [
    getattr(registry.load(registry.Kind.HARNESS, name), "cli", None) for name in registry.names(registry.Kind.HARNESS)
]
CLIS: list[Cli] = [cli for cli in LOADED if cli is not None]
NPM = [cli for cli in CLIS if isinstance(cli, NpmCli)]
PYPI = [cli for cli in CLIS if isinstance(cli, PypiCli)]
ADDRESS = re.compile(r"://|\bgit\+|\bfile:|@ |--\w*index|--find-links|\b[\w-]+\.(?:com|org|net|io|dev)\b")


def name_of(cli: Cli) -> str:
    return cli.name


def packages(cli: NpmCli) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(cli.lock.read_text())["packages"]
    return found


def test_every_preset_is_looked_at() -> None:
    assert len(NPM) + len(PYPI) == len(CLIS) >= 7
    assert {cli.lock.name for cli in CLIS} == {path.name for path in CLIS[0].lock.parent.iterdir()}


@pytest.mark.parametrize("cli", CLIS, ids=name_of)
def test_a_lock_has_no_address(cli: Cli) -> None:
    assert ADDRESS.findall(cli.lock.read_text()) == []


@pytest.mark.parametrize("cli", NPM, ids=name_of)
def test_an_npm_lock_is_of_the_presets_version_and_has_the_hash_of_every_package(cli: NpmCli) -> None:
    locked = packages(cli)
    assert locked.pop("") == {"dependencies": {cli.package: cli.version}}
    assert locked[f"node_modules/{cli.package}"]["version"] == cli.version
    for path, package in locked.items():
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package["integrity"]), path
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", package["version"]), path


@pytest.mark.parametrize(
    ("name", "native"),
    [
        (
            "claude_code",
            [f"@anthropic-ai/claude-code-linux-{end}" for end in ("x64", "arm64", "x64-musl", "arm64-musl")],
        ),
        ("codex", ["@openai/codex-linux-x64", "@openai/codex-linux-arm64"]),  # static binaries
        ("opencode", ["opencode-linux-x64"]),  # the others were in no registry that we could reach
    ],
)
def test_a_lock_has_the_binaries_of_other_machines(name: str, native: list[str]) -> None:
    cli = next(cli for cli in NPM if cli.name == name)
    assert {f"node_modules/{package}" for package in native} <= packages(cli).keys()


@pytest.mark.parametrize("cli", PYPI, ids=name_of)
def test_a_pypi_lock_has_the_presets_versions_and_hashes_of_every_package(cli: PypiCli) -> None:
    text = cli.lock.read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line]
    assert {f"{cli.package}=={cli.version}", *cli.beside} <= {line[0] for line in lines}
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line[0])
        hashes = [word for word in line if word.startswith("--")]
        assert hashes, line[0]
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for word in hashes)
