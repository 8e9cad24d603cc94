"""The import rules of docs/architecture.md: roof (`polar`) → rooms (`proxy`, `consumers`, `analytics`) → ground (`topics`)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[1]
GROUND = "topics"
ROOMS = ("proxy", "consumers", "analytics")
ROOF = "polar"
PACKAGES = (ROOF, *ROOMS, GROUND)
TRAINER = (
    "polar.agents",
    "polar.client",
    "polar.export.call_tokens",
    "polar.fleet",
    "polar.sessions",
    "polar.table",
    "polar.task_bodies",
    "polar.task_trajectories",
    "polar.trainer",
    "polar.uploads",
    "polar.webhooks",
    "topics",
)
"""What a trainer's environment imports: the packages without an extra must suffice."""
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
OF_AN_EXTRA = {
    "analytics.lake.bucket": "obstore",
    "polar.sessions": "openai",
    "topics.environment.s3": "obstore",
    "topics.environment.s3_blobs": "obstore",
    "topics.log.faststream_options": "faststream",
}
"""Modules that import a package only when it is used: an extra's, or `openai` for a session's client."""
OF_A_TRAINER = {
    "polar.trainer.openenv": {"openenv"},
    "polar.trainer.skyrl": {"skyrl"},
    "polar.trainer.slime": {"slime"},
    "polar.trainer.trl": {"accelerate", "transformers", "trl"},
    "polar.trainer.trl_async": {"transformers"},
    "polar.trainer.verl": {"tensordict", "torch", "transfer_queue", "verl"},
    "polar.trainer.vllm_weights": {"safetensors"},
}
"""Packages of another trainer that the module for it imports; its error says what to install."""
Source = Mapping[str, str]
"""Source text by module name; a package's `__init__` has the package's name."""


@pytest.fixture(scope="module")
def source() -> dict[str, str]:
    """All modules of the five packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


@cache
def statements(text: str) -> tuple[tuple[int, str, str | None], ...]:
    """(line, module, name or None) of every import statement of a text: inside functions and under TYPE_CHECKING too."""
    found: list[tuple[int, str, str | None]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            found += [(node.lineno, node.module, alias.name) for alias in node.names]
    return tuple(found)


def imports(source: Source, module: str) -> Iterator[tuple[int, str]]:
    """(line, imported module) of every import of a module."""
    for line, imported, name in statements(source[module]):
        # `from topics.log import kafka` imports a module, `from topics.log.kafka import stop` an attribute of one.
        yield line, f"{imported}.{name}" if f"{imported}.{name}" in source else imported


def floor(module: str) -> int:
    """0 for the ground, 1 for a room, 2 for the roof."""
    package = module.partition(".")[0]
    return 0 if package == GROUND else 2 if package == ROOF else 1


def upward(source: Source) -> list[str]:
    """Imports of a higher floor, and of one room by another."""
    return [
        f"{module}:{line} imports {imported}"
        for module in source
        for line, imported in imports(source, module)
        if imported.partition(".")[0] in PACKAGES
        and module.partition(".")[0] != imported.partition(".")[0]
        and floor(imported) >= floor(module)
    ]


def circle(source: Source) -> list[str]:
    """The modules of one circle of imports, in order; empty if there is none."""
    graph = {
        module: {imported for _, imported in imports(source, module) if imported in source and imported != module}
        for module in source
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_runs_upward_and_no_room_imports_another(source: Source) -> None:
    assert upward(source) == []


def test_no_circle_of_files(source: Source) -> None:
    assert circle(source) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("topics.events", "from proxy.chat import Message"),
        ("topics.log.kafka", "import polar.client"),
        ("proxy.chat", "from consumers.token_tree import tree"),
        ("consumers.fanout", "def f():\n    from polar import client"),
        ("analytics.lake.rows", "from proxy import chat"),
    ],
)
def test_a_planted_upward_import_is_found(source: Source, module: str, line: str) -> None:
    planted = {**source, module: f"{source[module]}\n{line}\n"}
    assert len(upward(planted)) == 1


def test_a_planted_circle_is_found_even_for_types_alone(source: Source) -> None:
    line = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from proxy.call import Call\n"
    assert set(circle({**source, "proxy.session.repeats": source["proxy.session.repeats"] + line})) >= {
        "proxy.call",
        "proxy.session.repeats",
    }


def test_what_a_trainer_imports_needs_no_extra(source: Source) -> None:
    allowed = {*PACKAGES, *sys.stdlib_module_names, *BASE, "__future__"}
    wrong = [
        f"{module}:{line}: {imported}"
        for module in source
        if module.startswith(TRAINER)
        for line, imported in imports(source, module)
        if imported.partition(".")[0] not in {*allowed, OF_AN_EXTRA.get(module), *OF_A_TRAINER.get(module, ())}
        or imported.partition(".")[0] in ROOMS
    ]
    assert wrong == []


def test_a_subcommand_s_module_is_imported_when_it_is_used() -> None:
    code = (
        "import sys; from polar.cli.app import PLACES, app; from typer.testing import CliRunner; "
        "assert CliRunner().invoke(app, ['status', '--help']).exit_code == 0; "
        "print(*{place.split(':')[0] for place in PLACES.values() if f'polar.cli.{place.split(chr(58))[0]}' in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["status"]


def test_the_command_line_starts_without_the_heavy_parts() -> None:
    code = "import polar.cli, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {
        "aiokafka",
        "aiohttp",
        "uvloop",
        "jgo",
        "obstore",
        "tokenizers",
        "proxy",
        "consumers",
        "analytics",
    } & set(loaded)
