"""Presets as data: what a file may say, and the words for what it may not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.harnesses.base import harness_of
from consumers.harnesses.settings_file import encoded
from consumers.harnesses.templates import check, filled
from topics.environment import registry
from topics.types.agent import AgentSpec
from topics.types.errors import InputError
from topics.types.task import parse

FILE = """
arguments = ["--model", "{model}", "--level", "{settings.level}"]
program = "my-agent"
settings.level = {default = 3}
"""


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(registry.PRESETS, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("progam = 'x'", "progam: no such field; do you mean program?"),
        (FILE + "[install]\nnpm = 'a'", "install.version: Field required"),
        ("arguments = []", "the preset: give exactly one of install and program"),
        ("install = {npm = 'a', version = '1', megabytes = 1}", "install: program is needed with npm"),
        (
            "install = {npm = 'a', pypi = 'b', version = '1', megabytes = 1}",
            "install: give exactly one of npm and pypi",
        ),
        (
            "install = {pypi = 'a', version = '1', megabytes = 1, module = 'a', program = 'b'}",
            "install: program doesn't go with pypi",
        ),
        ("program = 'a'\narguments = ['{modle}']", "the preset: '{modle}' has no such placeholder; there are: home, "),
        ("program = 'a'\nenv = {A = '{settings.api}'}", "the preset: '{settings.api}' has no such placeholder"),
        (
            "program = 'a'\narguments = ['a}b']",
            "the preset: 'a}b' has a brace that belongs to no placeholder; write it twice: }}",
        ),
        ("program = 'a'\nsettings.level = {default = 0}", "settings.level: default must be a number of 1 or more"),
        ("program = 'a'\nsettings.level = {default = 'a'}", "settings.level: default must be a number of 1 or more"),
        (
            "program = 'a'\nsettings.level = {default = 'a', choices = {b = {}}}",
            "settings.level: default must be one of choices: b",
        ),
        (
            "program = 'a'\nsettings.api = {default = 'a', choices = {a = {x = '1'}, b = {}}}",
            "settings.api: every choice needs texts of the same names",
        ),
        ("program = 'a'\nsettings.Level = {default = 1}", "settings.Level"),
        ("program = 'a'\nskills_folder = '/etc'", "skills_folder: must be a path below the home"),
        ("program = 'a'\ntranscript = '../a'", "transcript: must be a path below the home"),
        (
            "program = 'a'\nmcp = {file = 'a.json', key = 'b'}",
            "the preset: mcp.file 'a.json' must be the path of one of files",
        ),
        (
            "program = 'a'\nfiles = [{path = 'a', format = 'json', content = {}}]\nmcp = {file = 'a', key = 'b', sse = {u = '{command}'}}",
            "the preset: '{command}' has no such placeholder; there are: headers, url",
        ),
        ("program = 'a'\nfiles = [{path = 'a', format = 'yaml', content = {}}]", "files.0.format: "),
        (
            "program = 'a'\nfiles = [{path = 'a', format = 'json', content = {day = 2026-01-01}}]",
            "files.0.content: may hold texts, numbers, booleans, lists and tables",
        ),
        ("program = 'a'\narguments = ['{}']", "the preset: '{}' has no such placeholder"),
        ("program = ", "my_agent.toml: is no TOML"),
    ],
)
def test_what_a_file_may_not_say_is_refused_by_its_field(presets: Path, text: str, message: str) -> None:
    (presets / "my_agent.toml").write_text(text)
    with pytest.raises(InputError) as refused:
        parse({"task_id": "t", "instruction": "x", "agent": {"harness": "my_agent"}})
    assert message in str(refused.value)
    assert str(presets / "my_agent.toml") in str(refused.value)


def test_a_file_is_a_harness_with_the_name_of_the_file(presets: Path) -> None:
    (presets / "my_agent.toml").write_text(FILE)
    task = {"task_id": "t", "instruction": "x", "agent": {"harness": "my_agent", "settings": {"level": 5}}}
    parse(task)
    assert "my_agent" in registry.names(registry.Kind.HARNESS)
    with pytest.raises(InputError, match=r"agent\.settings\.speed: my_agent has no such setting; there are: level"):
        parse(task | {"agent": {"harness": "my_agent", "settings": {"speed": 1}}})
    with pytest.raises(InputError, match=r"agent\.settings\.level"):
        parse(task | {"agent": {"harness": "my_agent", "settings": {"level": 0}}})
    with pytest.raises(InputError, match="my_agent has no place for skills"):
        parse(task | {"agent": {"harness": "my_agent", "skills": ["a"]}})
    with pytest.raises(InputError, match=r"no such harness.*NAME\.toml in the folder of POLAR_PRESETS"):
        parse(task | {"agent": {"harness": "another"}})


def test_a_file_with_the_name_of_an_installed_harness_is_refused(presets: Path) -> None:
    (presets / "pi.toml").write_text(FILE)
    with pytest.raises(InputError, match=r"is installed, and .*pi\.toml has the same name; rename the file"):
        harness_of(AgentSpec(harness="pi"))


VALUES = {"model": "a/b", "settings.level": 3, "args": ["x", "y"]}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.one_of(TEXT, st.integers(-(2**53), 2**53), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{model}", "a/b"),
        ("{settings.level}", 3),
        ("level {settings.level}, {{model}} {model}", "level 3, {model} a/b"),
        ({"{model}": ["{args}", True]}, {"a/b": [["x", "y"], True]}),
        ("", ""),
        ("{{", "{"),
    ],
)
def test_a_template_is_filled(template: Any, value: Any) -> None:
    check(template, VALUES)
    assert filled(template, VALUES) == value


@given(PLAIN)
def test_what_is_no_placeholder_stays_as_it_is(value: Any) -> None:
    def escaped(part: Any) -> Any:
        if isinstance(part, str):
            return part.replace("{", "{{").replace("}", "}}")
        if isinstance(part, list):
            return [escaped(each) for each in part]
        if isinstance(part, dict):
            return {escaped(key): escaped(each) for key, each in part.items()}
        return part

    check(escaped(value), ())
    assert filled(escaped(value), {}) == value


@given(st.dictionaries(TEXT, PLAIN, max_size=4))
def test_both_formats_say_the_same(content: dict[str, Any]) -> None:
    assert json.loads(encoded(content, "json")) == content
    assert tomllib.loads(encoded(content, "toml").decode()) == content
