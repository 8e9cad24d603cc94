"""A task's folder is read as Harbor reads it, or an InputError names the file, the field and the value."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks.harbor_folder import decoded, parse_toml, read_task, without_canary
from polar.tasks.harbor_schema import Config
from tests.polar.tasks.fields import leaves
from tests.polar.tasks.writing import nested, read, write
from topics.types.errors import InputError

NAMES = st.sampled_from([name for path in leaves() for name in path.split(".")] + ["memory", "allow_internet", "extra"])
VALUES = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]))
    | st.sampled_from(["2G", "${A:-b}", "allowlist", "separate", "public", "pypi.org"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
CONFIGS = st.dictionaries(NAMES, VALUES, max_size=6)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"version": "1.0"}, {"schema_version": "1.0"}),
        ({"environment": {"memory": "2G"}}, {"environment": {"memory_mb": 2048}}),
        ({"environment": {"memory": "0.5g"}}, {"environment": {"memory_mb": 512}}),
        ({"environment": {"storage": "65536K"}}, {"environment": {"storage_mb": 64}}),
        ({"environment": {"memory": "2G", "memory_mb": 2048}}, {"environment": {"memory_mb": 2048}}),
        ({"environment": {"allow_internet": False}}, {"environment": {"network_mode": "no-network"}}),
        ({"environment": {"allow_internet": True}}, {"environment": {"network_mode": "public"}}),
        (
            {"environment": {"allow_internet": True, "network_mode": "no-network"}},
            {"environment": {"network_mode": "no-network"}},
        ),
        ({"environment": {"os": "Linux"}}, {"environment": {"os": "linux"}}),
        (
            {"environment": {"mcp_servers": [{"name": "a", "transport": "http", "url": "http://a"}]}},
            {"environment": {"mcp_servers": [{"name": "a", "transport": "streamable-http", "url": "http://a"}]}},
        ),
    ],
)
def test_an_older_spelling_means_the_newer_field(tmp_path: Path, older: Any, newer: Any) -> None:
    assert read(tmp_path / "older", older).config == read(tmp_path / "newer", newer).config


@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        ({"agent": {"timeout_secs": 3}}, "agent.timeout_secs", "do you mean timeout_sec?"),
        ({"colour": "blue"}, "colour", "no such field; there are: schema_version, task, metadata"),
        ({"steps": [{"name": "a", "agent": {"usr": "x"}}]}, "steps.0.agent.usr", "do you mean user?"),
        ({"agent": {"env": {}}}, "agent.env", "there are: network_mode, allowed_hosts, timeout_sec, user"),
        ({"schema_version": "1.5"}, "schema_version", "reads 1.0 to 1.4"),
        ({"schema_version": "2.0"}, "schema_version", "reads 1.0 to 1.4"),
        ({"version": "1.0", "schema_version": "1.1"}, "task.toml", "leave it out"),
        ({"agent": {"timeout_sec": 0}}, "agent.timeout_sec", "greater than 0"),
        ({"environment": {"memory": "2 cows"}}, "environment", "a size like '2G'"),
        ({"environment": {"memory": "2G", "memory_mb": 1}}, "environment", r"memory \(2048 MB\) and memory_mb \(1\) differ"),
        ({"environment": {"allow_internet": "no"}}, "environment", "true or false"),
        ({"environment": {"allowed_hosts": ["pypi.org"]}}, "environment", "goes with network_mode 'allowlist'"),
        ({"environment": {"mcp_servers": [{"name": "a"}]}}, "environment.mcp_servers.0", "url is needed"),
        ({"verifier": {"environment_mode": "shared", "environment": {}}}, "verifier", "environment_mode 'separate'"),
        ({"task": {"name": "no-organisation"}}, "task.name", "must be organisation/name"),
        ({"task": {"name": "a/b\n"}}, "task.name", "must be organisation/name"),
        ("agent = x", "task.toml", "not TOML: .* line 1"),
        ("[metadata]\na = [{b = -inf}]", "metadata", "metadata.a.0.b must be a finite number"),
        ("a = " + "[" * 5000, "task.toml", "not TOML: nested too deeply"),
        ("agent.timeout_sec = inf", "agent.timeout_sec", "finite"),
        ("agent.timeout_sec = " + "9" * 5000, "task.toml", "not TOML"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_read_is_named(tmp_path: Path, config: Any, field: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        read(tmp_path, config)
    assert error.value.field.endswith(field)


@pytest.mark.parametrize(
    ("missing", "field"),
    [
        ({"instruction_md": None}, "instruction.md"),
        ({"tests__test_sh": None}, "tests/test.sh"),
        ({"environment__Dockerfile": None}, "environment.docker_image"),
    ],
)
def test_a_file_that_every_task_needs_is_named(tmp_path: Path, missing: dict[str, str | None], field: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, {}, **missing)
    assert error.value.field.endswith(field)


def test_files_that_the_configuration_makes_superfluous_may_be_missing(tmp_path: Path) -> None:
    read(tmp_path / "image", {"environment": {"docker_image": "a:1"}}, environment__Dockerfile=None)
    read(tmp_path / "separate", {"verifier": {"environment_mode": "separate"}}, tests__test_sh=None)
    read(tmp_path / "steps", {"steps": [{"name": "a"}]}, instruction_md=None)


@pytest.mark.parametrize("name", ["instruction.md", "task.toml", "tests/test.sh"])
def test_a_link_that_leads_out_of_the_task_is_not_followed(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    folder = write(tmp_path / "task")
    (folder / name).unlink()
    (folder / name).symlink_to(outside)
    with pytest.raises(InputError, match="leads out of"):
        read_task(folder)


def test_a_link_to_itself_is_not_followed(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "instruction.md").unlink()
    (folder / "instruction.md").symlink_to("instruction.md")
    with pytest.raises(InputError):
        read_task(folder)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "instruction.md").unlink()
    os.mkfifo(folder / "instruction.md")
    with pytest.raises(InputError, match="no such file"):
        read_task(folder)


def test_a_large_instruction_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with (folder / "instruction.md").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="at most 1048576 bytes"):
        read_task(folder)


@pytest.mark.parametrize(
    ("text", "agents"),
    [
        ("Craft.\n", "Craft.\n"),
        ("<!-- benchmark CANARY 1 -->\n# canary: 2\n\n\n Craft.\n", " Craft.\n"),
        ("# A title\n# canary\n", "# A title\n# canary\n"),
        ("\n\nCraft.", "Craft."),
    ],
)
def test_agents_do_not_see_marks_of_benchmark_data(tmp_path: Path, text: str, agents: str) -> None:
    assert read(tmp_path, instruction_md=text).instruction == agents


@given(st.text())
def test_only_the_beginning_of_an_instruction_is_removed(text: str) -> None:
    found = without_canary(text)
    assert text.endswith(found)
    assert without_canary(found) == found


PLACE = Path("task.toml")


def refused_or_read(config: object) -> None:
    """The configuration is read, and every value of it can be kept as JSON; or the error names the file."""
    try:
        found = decoded(Config, config, PLACE)
    except InputError as error:
        assert error.field.startswith("task.toml") and error.reason  # noqa: PT017,PT018
    else:
        json.dumps(found.model_dump(mode="json"), allow_nan=False)


@given(CONFIGS)
def test_any_configuration_is_read_or_refused(config: dict[str, Any]) -> None:
    refused_or_read(config)


@given(st.text(alphabet=st.sampled_from("[]{}=.\"'\n agentevr_imouc0123é#\\")) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        config = parse_toml(text, PLACE)
    except InputError:
        return
    refused_or_read(config)


@given(st.sampled_from("GMKgmk"), st.decimals(0, 10_000, places=2))
def test_a_size_is_rounded_down_to_megabytes(unit: str, size: Any) -> None:
    found = Config.model_validate(nested("environment.memory", f"{size}{unit}"))
    assert found.environment.memory_mb == int(size * {"G": 1024 * 1024, "M": 1024, "K": 1}[unit.upper()] // 1024)
