"""The import direction of docs/structure: floor, topics on it, the parts on those two, and only the command line looks across."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("polar", "topics", "proxy", "consumers", "analytics")
FLOOR = {"types", "settings", "registry", "keys", "blobs", "cache", "webhooks"}
ACROSS = {"polar.cli", "polar.embedded"}
SDK = {("polar.sessions", "polar.client"), ("polar.fleet", "polar.client"), ("polar.trainer", "polar.client")}
"""Of what programs import, the parts that stand on another."""
TRAINER = {"floor", "topics", "polar.client", "polar.fleet", "polar.sessions", "polar.trainer"}
"""What a trainer's environment imports: the packages without an extra must do."""
BASE = {
    "aiokafka",
    "filelock",
    "jwt",
    "msgspec",
    "numpy",
    "platformdirs",
    "pydantic",
    "pydantic_settings",
    "rich",
    "structlog",
    "typer",
    "yaml",
}
"""Import names of `project.dependencies`."""


def area(module: str) -> str:
    """The part of the tree that a module belongs to: `floor`, a package, or a part of polar."""
    package, _, rest = module.partition(".")
    if package != "polar":
        return package
    part = rest.partition(".")[0]
    return "floor" if not part or part in FLOOR else f"polar.{part}"


def may_import(importer: str, imported: str) -> bool:
    return (
        importer == imported
        or importer in ACROSS
        or imported == "floor"
        or (importer, imported) in SDK
        or (imported == "topics" != importer != "floor")
    )


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            # `from polar import keys` names a module, not an attribute.
            if node.module in PACKAGES:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {area(module)} imports {imported}"
        for module, path in modules()
        for line, imported in imports(path)
        if imported.partition(".")[0] in PACKAGES and not may_import(area(module), area(imported))
    ]
    assert not wrong, "\n".join(wrong)


def test_what_a_trainer_imports_needs_no_extra() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported}"
        for module, path in modules()
        if area(module) in TRAINER
        for line, imported in imports(path)
        if imported.partition(".")[0] not in {*PACKAGES, *sys.stdlib_module_names, *BASE, "__future__"}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("floor", "topics", False),
        ("topics", "floor", True),
        ("topics", "proxy", False),
        ("proxy", "topics", True),
        ("proxy", "consumers", False),
        ("consumers", "proxy", False),
        ("consumers", "polar.embedded", False),
        ("polar.client", "polar.scripted", False),
        ("polar.cli", "consumers", True),
        ("polar.embedded", "topics", True),
    ],
)
def test_the_rule_says_what_the_design_says(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported) is allowed


def test_the_command_line_starts_without_the_heavy_parts() -> None:
    code = "import polar.cli, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiokafka", "aiohttp", "uvloop", "jgo", "tokenizers", "topics", "proxy", "consumers"} & set(loaded)
