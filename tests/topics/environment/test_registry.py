"""Plug-ins by name or by path."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from topics.environment import registry
from topics.environment.registry import Kind
from topics.types.errors import InputError

pytestmark = pytest.mark.contract


def test_names_are_known_without_importing_them() -> None:
    assert {"pi", "shell"} <= set(registry.names(Kind.HARNESS))
    assert {"per_request", "prefix_merging"} <= set(registry.names(Kind.BUILDER))
    assert registry.is_known(Kind.RUNTIME, "process")
    assert not registry.is_known(Kind.RUNTIME, "shell")


def test_a_class_path_is_taken_as_known() -> None:
    assert registry.is_known(Kind.HARNESS, "my_lab.agents:Agent")
    for wrong in ("my_lab.agents", "my lab:Agent", ":Agent", "a:b:c", "a:", ""):
        assert not registry.is_known(Kind.HARNESS, wrong)


def test_a_class_is_loaded_by_path_or_name() -> None:
    assert registry.load(Kind.HARNESS, "topics.environment.registry:Kind") is Kind
    assert registry.load(Kind.BUILDER, "per_request").__name__ == "PerRequest"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("claude", r"no such harness; there are: .*pi.*, or module:Class \(got 'claude'\)"),
        ("no_such_module:Agent", "can't be imported here: "),
        ("topics.environment.registry:NoSuch", "can't be imported here: "),
        ("os:path", "is no class"),
        ("os:system", "is no class"),
    ],
)
def test_a_name_that_cannot_be_loaded_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"harness: {reason}"):
        registry.load(Kind.HARNESS, name)


def test_without_anything_installed_every_name_may_be_one(tmp_path: Path) -> None:
    """A trainer's environment that has Polar by its path: tasks are made there, and judged where they are taken."""
    (tmp_path / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    program = (
        "import sys; sys.path += sys.argv[1:]\n"
        "from topics.environment import registry\n"
        "print(registry.names(registry.Kind.HARNESS), registry.is_known(registry.Kind.HARNESS, 'shell'))"
    )
    root = Path(registry.__file__).parents[2]
    command = [sys.executable, "-I", "-S", "-c", program, str(root), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"
