"""What the fields of a row become, in each format; and which rows are refused, by the name of a field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks import row_mapping
from polar.tasks.harbor_mapping import Finding, Mapped
from polar.tasks.harbor_rules import Outcome
from polar.tasks.placeholders import filled, names
from polar.tasks.repositories import Repositories
from polar.tasks.row_options import RowOptions
from polar.tasks.row_rules import FIELDS, RowFormat, recognised
from polar.tasks.rows import Row
from tests.polar.tasks import swe
from tests.polar.tasks.swe import AGENT, a_row
from topics.types.errors import InputError

SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git status
git show
git -c core.fileMode=false diff {"a" * 40}
python -m pip install -e .
git checkout {"a" * 40} tests/test_calc.py
git apply -v - <<'EOF_1'
{swe.TEST_PATCH}
EOF_1
: '>>>>> Start Test Output'
pytest -rA tests/test_calc.py
: '>>>>> End Test Output'
git checkout {"a" * 40} tests/test_calc.py
"""
ROWS: dict[RowFormat, dict[str, Any]] = {
    RowFormat.SWE_BENCH_4: a_row(test_command="pytest -rA", parser="parse_log_pytest"),
    RowFormat.SWE_BENCH_5: a_row(
        image="swebench/calc:1", eval_script=SCRIPT, log_parser="parse_log_pytest", eval_type="pass_and_fail", split="test"
    ),
    RowFormat.SWE_GYM: a_row(repo="getmoto/moto", instance_id="getmoto__moto-7023"),
    RowFormat.SWE_SMITH: {
        "instance_id": "a__b.12345678.func_1",
        "repo": "swesmith/a__b.12345678",
        "image_name": "swebench/swesmith.x86_64.a_1776_b.12345678",
        "patch": "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a**b\n+a * b\n",
        "problem_statement": "power(2, 3) is 6.",
        "FAIL_TO_PASS": ["tests/test_calc.py::test_three"],
        "PASS_TO_PASS": ["tests/test_calc.py::test_adds", "tests/test_other.py::test_it"],
    },
    RowFormat.R2E_GYM: {
        "repo_name": "calc",
        "docker_image": "namanjain12/calc_final:abc",
        "commit_hash": "abc",
        "parsed_commit_content": "{}",
        "problem_statement": "Read this: [ISSUE]\npower(2, 3) is 6.\n[/ISSUE]",
        "expected_output_json": json.dumps({"\x1b[1mTestA.test_b\x1b[0m": "PASSED", "test_c - why": "FAILED"}),
        "prompt": "Write an issue.",
    },
}  # fmt: skip


def mapped(fields: dict[str, Any], template: dict[str, Any] | None = None, **options: Any) -> Mapped:
    return row_mapping.mapped(Row("place", fields), "name", {**AGENT, **(template or {})}, RowOptions(**options))


def config(found: Mapped) -> dict[str, Any]:
    assert found.refusals == ()
    return dict(found.body["evaluator"]["config"])


def refused(found: Mapped) -> str:
    (refusal,) = found.refusals
    return f"{refusal.name}: {refusal.becomes}"


@pytest.mark.parametrize("row_format", ROWS)
def test_each_format_is_recognised_and_becomes_a_task_without_the_solution(row_format: RowFormat) -> None:
    row = ROWS[row_format]
    assert recognised(row) is row_format
    found = mapped(row)
    assert found.refusals == ()
    assert found.body["instruction"] == "power(2, 3) is 6."
    assert found.body["metadata"]["swe"]["format"] == row_format.value
    shown = json.dumps({name: value for name, value in found.body.items() if name != "evaluator"})
    assert "test_calc.py" not in shown.replace("tests/test_calc.py::", "")
    if row_format is not RowFormat.SWE_SMITH:  # its patch is the bug
        assert "calc.py b/calc.py" not in json.dumps(found.body)


@pytest.mark.parametrize(
    ("row_format", "image"),
    [
        (RowFormat.SWE_BENCH_4, "swebench/sweb.eval.x86_64.mine_1776_calc-1:latest"),
        (RowFormat.SWE_BENCH_5, "swebench/calc:1"),
        (RowFormat.SWE_GYM, "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7023:latest"),
        (RowFormat.SWE_SMITH, "swebench/swesmith.x86_64.a_1776_b.12345678"),
        (RowFormat.R2E_GYM, "namanjain12/calc_final:abc"),
    ],
)
def test_each_format_names_its_images(row_format: RowFormat, image: str) -> None:
    assert mapped(ROWS[row_format]).body["runtime"]["image"] == image
    assert mapped(ROWS[row_format], image="mine:1").body["runtime"]["image"] == "mine:1"
    assert mapped(ROWS[row_format], {"runtime": {"image": "mine:2"}}).body["runtime"]["image"] == "mine:2"


def test_an_image_of_the_row_s_id_is_reported_and_one_line_stands_for_all_rows() -> None:
    def images(found: Mapped) -> list[tuple[object, str]]:
        return [(one.value, one.becomes) for one in found.findings if one.becomes.startswith("runtime.image")]

    becomes = "runtime.image: swebench/sweb.eval.x86_64.ID:latest, by the row's instance_id"
    row = ROWS[RowFormat.SWE_BENCH_4]
    assert images(mapped(row)) == [("swebench/sweb.eval.x86_64.mine_1776_calc-1:latest", becomes)]
    assert images(mapped(row, {"runtime": {"image": "mine:2"}})) == images(mapped(row, image="mine:1")) == []
    assert images(mapped(ROWS[RowFormat.SWE_SMITH])) == [
        ("swebench/swesmith.x86_64.a_1776_b.12345678", "runtime.image")
    ]
    assert refused(mapped(ROWS[RowFormat.R2E_GYM] | {"docker_image": ""})).startswith(
        "runtime.image: the row names none"
    )


def test_an_image_may_have_places() -> None:
    assert (
        mapped(a_row(test_command="true"), image="mine/{{repo}}:{{version}}").body["runtime"]["image"]
        == "mine/mine/calc:1.0"
    )
    with pytest.raises(InputError, match="the row has no such field"):
        mapped(a_row(test_command="true"), image="{{tag}}")


def test_the_tests_are_lists_or_their_json() -> None:
    found = config(mapped(a_row(test_command="true", PASS_TO_PASS=swe.PASS_TO_PASS)))
    assert (found["fail_to_pass"], found["pass_to_pass"]) == (swe.FAIL_TO_PASS, swe.PASS_TO_PASS)
    assert "FAIL_TO_PASS: must be a list" in refused(mapped(a_row(test_command="true", FAIL_TO_PASS="{}")))


def test_an_evaluation_script_loses_what_the_evaluator_does_itself() -> None:
    assert config(mapped(ROWS[RowFormat.SWE_BENCH_5]))["test_command"] == (
        "set -uxo pipefail\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n"
        "git config --global --add safe.directory /testbed\npython -m pip install -e .\n"
        ": '>>>>> Start Test Output'\npytest -rA tests/test_calc.py\n"
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("pytest", "has no line with '>>>>> End Test Output'"),
        (SCRIPT.replace("git apply", "patch"), "isn't of swebench's form"),
        (SCRIPT.replace("\nEOF_1\n", "\n"), "its here-document EOF_1 has no end"),
        (SCRIPT.replace("git show", "curl -o a.png https://a"), "downloads files of the tests"),
    ],
)
def test_another_script_is_refused(script: str, reason: str) -> None:
    assert f"eval_script: {reason}" in refused(mapped({**ROWS[RowFormat.SWE_BENCH_5], "eval_script": script}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eval_type", "fail_only"),
        ("log_parser", "parse_log_doctest"),
        ("log_parser", "parse_log_prettier"),
        ("log_parser", "parse_log_jekyll"),
        ("image_assets", '{"a": 1}'),
        ("test_assets", True),
    ],
)
def test_what_isnt_built_is_refused_by_name(field: str, value: object) -> None:
    assert refused(mapped({**ROWS[RowFormat.SWE_BENCH_5], field: value})).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("instance_id", "log_parser", "parser"),
    [
        ("axios__axios-5085", "parse_log_tap", "parse_log_tap"),
        ("google__gson-2024", "parse_log_maven", "parse_log_maven"),
        ("jekyll__jekyll-9141", "parse_log_jekyll", "parse_log_minitest"),
        ("jekyll__jekyll-8761", "parse_log_jekyll", "parse_log_cucumber"),
        ("immutable-js__immutable-js-2005", "parse_log_immutable_js", "parse_log_jest_json"),
    ],
)
def test_rows_in_other_languages_have_their_parsers(instance_id: str, log_parser: str, parser: str) -> None:
    row = {**ROWS[RowFormat.SWE_BENCH_5], "instance_id": instance_id, "log_parser": log_parser}
    assert config(mapped(row))["parser"] == parser


def test_swe_gym_tests_the_files_of_the_test_patch() -> None:
    command = config(mapped(ROWS[RowFormat.SWE_GYM]))["test_command"]
    assert command == "source /opt/miniconda3/bin/activate testbed\npytest -n0 -rA tests/test_calc.py\n"
    assert refused(mapped(a_row(repo="python/mypy"))).startswith("repo: tests of python/mypy are chosen by cases")


def test_swe_smith_counts_what_it_runs_and_its_bug_has_no_history() -> None:
    found = mapped(ROWS[RowFormat.SWE_SMITH])
    assert config(found)["pass_to_pass"] == ["tests/test_calc.py::test_adds"]
    assert config(found)["protected"] == ["tests/test_calc.py"]
    (action,) = found.body["runtime"]["prepare"]
    assert (
        action["command"].index("git apply")
        < action["command"].index("rm -rf .git")
        < action["command"].index("git commit")
    )


def test_r2e_gyms_statuses_are_compared_as_there() -> None:
    found = config(mapped(ROWS[RowFormat.R2E_GYM]))
    assert found["expected_output_json"] == {"TestA.test_b": "PASSED", "test_c": "FAILED"}
    assert (found["parser"], found["exact"]) == ("r2e", True)


def test_without_the_package_a_version_says_where_its_tests_stand() -> None:
    try:
        import swebench.harness.test_spec  # noqa: F401
    except ImportError:
        assert "stands in the package swebench 4; install it" in refused(mapped(a_row()))
    else:
        pytest.skip("swebench 4 is installed")


def test_the_templates_test_command_may_name_the_tests() -> None:
    template = {"evaluator": {"config": {"test_command": "pytest -rA {{test_files}}", "parser": "parse_log_pytest"}}}
    found = config(mapped(a_row(), template))
    assert found["test_command"] == "pytest -rA tests/test_calc.py"
    assert found["fail_to_pass"] == swe.FAIL_TO_PASS


def test_the_templates_own_evaluator_takes_the_tests_place() -> None:
    body = mapped(a_row(), {"evaluator": {"strategy": "session_completed"}}).body
    assert body["evaluator"] == {"strategy": "session_completed"}
    again = mapped(a_row(test_command="true"), {"evaluator": {"strategy": "swebench"}})
    assert config(again)["fail_to_pass"] == swe.FAIL_TO_PASS


@pytest.mark.parametrize("field", ["patch", "test_patch"])
def test_a_template_cant_show_the_solution_to_the_agent(field: str) -> None:
    shown = {"runtime": {"prepare": [{"type": "exec", "command": f"echo {{{{{field}}}}}"}]}}
    with pytest.raises(InputError, match="would show the agent"):
        mapped(a_row(test_command="true"), shown)
    hidden = {"runtime": {"eval_prepare": [{"type": "exec", "command": f"echo {{{{{field}}}}}"}]}}
    assert mapped(a_row(test_command="true"), hidden).refusals == ()


def test_an_unknown_field_is_refused_named_or_ignored() -> None:
    row = a_row(test_command="true", colour="red")
    assert refused(mapped(row)).startswith("colour: no field of SWE-bench 4 that Polar knows; name it")
    assert mapped(row, ignored=["colour"]).refusals == ()
    assert mapped({**row, "colour": ""}).refusals == ()
    assert mapped(row, {"instruction": "{{colour}}"}).body["instruction"] == "red"


def test_a_solution_that_the_evaluation_would_undo_is_refused() -> None:
    patch = "diff --git a/tests/conftest.py b/tests/conftest.py\n"
    assert refused(mapped(a_row(test_command="true", patch=patch))).startswith("patch: the solution changes a file")


def test_a_repository_takes_the_images_place(tmp_path: Path) -> None:
    repositories = Repositories({swe.REPO: "/calc"}, tmp_path)
    template = {"runtime": {"prepare": [{"type": "exec", "command": "make"}]}}
    found = mapped(a_row(test_command="make test"), template, repositories=repositories)
    assert found.refusals == ()
    assert "image" not in found.body["runtime"]
    upload, unpack, own = found.body["runtime"]["prepare"]
    assert upload["source"] == str(tmp_path / f"mine__calc-{'a' * 40}.bundle")
    assert "git fetch" in unpack["command"]
    assert own["command"] == "make"
    short = mapped(a_row(base_commit="abc", test_command="true"), repositories=repositories)
    assert refused(short) == "base_commit: must be the whole hash of a commit"
    assert refused(mapped(a_row(), repositories=repositories)).startswith("test_command: the row doesn't say")


def test_a_plain_row_is_what_the_template_makes_of_it() -> None:
    row = {"id": 7, "question": "1 + 1", "answer": {"is": 2}}
    template = {"task_id": "q-{{id}}", "instruction": "{{question}}?", "metadata": {"answer": "{{answer}}"}}
    found = mapped(row, template)
    assert (found.body["task_id"], found.body["instruction"]) == ("q-7", "1 + 1?")
    assert found.body["metadata"] == {"answer": {"is": 2}}
    assert refused(mapped(row)).startswith("instruction: a row of no known format")
    with pytest.raises(InputError, match="instruction: the row has no such field; it has: answer, id, question"):
        mapped(row, {"instruction": "{{qestion}}"})


def test_a_place_may_lead_into_a_field() -> None:
    row = {"id": 1, "a": {"b": {"c": [2]}, "d": 3}, "a.d": 4}
    template = {"instruction": "{{a.b}} {{a.d}}", "metadata": {"c": "{{a.b.c}}"}}
    found = mapped(row, template)
    assert (found.body["instruction"], found.body["metadata"]) == ('{"c": [2]} 4', {"c": [2]})
    assert {one.name: one.outcome for one in found.findings} == {
        "id": Outcome.NEUTRAL,
        "a": Outcome.CARRIED,
        "a.d": Outcome.CARRIED,
    }
    for place, reason in (("a.x", "the row's a has no such value; it has: b, d"), ("a.d.x", "it has: no mapping")):
        with pytest.raises(InputError, match=re.escape(reason)):
            mapped(row, {"instruction": f"{{{{{place}}}}}"})


def test_every_format_has_rules_but_the_plain_one() -> None:
    assert {each for each in RowFormat if not FIELDS[each]} == {RowFormat.PLAIN}


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
NAMES = st.from_regex(r"[a-z_][a-z0-9_.-]{0,10}", fullmatch=True)


@given(st.dictionaries(NAMES, VALUES, min_size=1))
def test_a_place_alone_keeps_the_value_and_its_type(fields: dict[str, Any]) -> None:
    template = {name: f"{{{{ {name} }}}}" for name in fields}
    assert names(template) == fields.keys()
    assert filled(template, fields) == fields
    assert filled({"a": ["x {{b}}"]}, {"b": "{{c}}"}) == {"a": ["x {{c}}"]}, "a value is no template"


@given(
    st.dictionaries(NAMES, VALUES)
    | st.builds(lambda more: a_row(**more), st.dictionaries(st.sampled_from(sorted(a_row())), VALUES))
)
def test_every_row_is_mapped_or_refused(fields: dict[str, Any]) -> None:
    """None raises anything else, and a task that isn't refused has its solution nowhere."""
    found = mapped(fields, {"instruction": "do"})
    assert found.refusals or isinstance(found.request(), Finding) or found.body["task_id"]
