"""What becomes of each field of a row, by the row's format. A field that isn't here refuses its task, unless the import ignores it by name.

Formats are recognised by their fields: `recognised`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from polar.tasks.harbor_rules import Outcome, Rule
from polar.tasks.nemo_gym import INPUT, INSTRUCTIONS, REQUEST

MARK = "metadata.swe"
NEMO_MARK = "metadata.nemo_gym"
CONFIG = "evaluator.config"
STRATEGY = "evaluator.strategy"
IMAGE = "runtime.image"
INSTRUCTION = "instruction"
TEST_COMMAND = f"{CONFIG}.test_command"


class RowFormat(StrEnum):
    SWE_BENCH_4 = "SWE-bench 4"
    SWE_BENCH_5 = "SWE-bench 5"
    SWE_GYM = "SWE-Gym"
    SWE_SMITH = "SWE-smith"
    R2E_GYM = "R2E-Gym"
    NEMO_GYM = "NeMo-Gym"
    PLAIN = "plain"
    """Any other row: the template says what its fields become."""


NAMES = ("task_id", "id", "name")
"""Fields of a plain row that can name it."""
NEMO_NAMES = (*NAMES, "uuid", "instance_id")
SWE_GYM_TESTS: Mapping[str, tuple[str, str]] = {
    "bokeh/bokeh": ("pytest -rA -n0", "parse_log_pytest"),
    "conan-io/conan": ("PYTHONPATH=${PYTHONPATH:-}:$PWD pytest -n0 -rA", "parse_log_pytest"),
    "dask/dask": ("pytest -n0 -rA --color=no", "parse_log_pytest"),
    "facebookresearch/hydra": ("pytest -rA --tb=long", "parse_log_pytest"),
    "getmoto/moto": ("pytest -n0 -rA", "parse_log_pytest"),
    "iterative/dvc": ("pytest -rA", "parse_log_pytest"),
    "modin-project/modin": ("pytest -n0 -rA", "parse_log_pytest"),
    "pandas-dev/pandas": ("pytest -rA --tb=long", "parse_log_pytest"),
    "project-monai/monai": ("pytest -rA", "parse_log_pytest"),
    "pydantic/pydantic": ("pytest -rA --tb=short -vv -o console_output_style=classic --no-header", "parse_log_pytest_pydantic"),
    "python/mypy": ("", ""),
}  # fmt: skip
"""How SWE-Gym tests its eleven repositories, by their names in lower case (SWE-Bench-Package, swegym/harness/constants.py). mypy's tests
are chosen by names of cases instead of files."""


def _carried(target: str, *replaced_by: str) -> Rule:
    return Rule(Outcome.CARRIED, target, replaced_by or (target,))


def _neutral(why: str) -> Rule:
    return Rule(Outcome.NEUTRAL, why)


def _refused(why: str, *replaced_by: str, neutral: tuple[object, ...] = ()) -> Rule:
    return Rule(Outcome.REFUSED, why, replaced_by, neutral)


def _marked(*names: str) -> dict[str, Rule]:
    return {name: _carried(f"{MARK}.{name}") for name in names}


_SOLUTION = "the reference solution, which no rollout sees"
_HISTORY = "says how the row came about"
_TESTS = {
    "FAIL_TO_PASS": _carried(f"{CONFIG}.fail_to_pass", STRATEGY),
    "PASS_TO_PASS": _carried(f"{CONFIG}.pass_to_pass", STRATEGY),
}
_ISSUE: Mapping[str, Rule] = {
    "instance_id": _carried("task_id"),
    **_marked("repo", "version", "base_commit"),
    "problem_statement": _carried(INSTRUCTION),
    "hints_text": _neutral("SWE-bench gives no hints; `{{hints_text}}` in the template's instruction does"),
    "patch": _neutral(_SOLUTION),
    "test_patch": _carried(f"{CONFIG}.test_patch", STRATEGY),
    **_TESTS,
    "created_at": _neutral(_HISTORY),
    "environment_setup_commit": _neutral("for whoever builds the image"),
    **_marked("difficulty"),
}
_OWN: Mapping[str, Rule] = {
    "test_command": _carried(TEST_COMMAND, TEST_COMMAND, STRATEGY),
    "parser": _carried(f"{CONFIG}.parser", f"{CONFIG}.parser", STRATEGY),
}
"""Fields of Polar's own, for rows that no package knows."""
_EARLIER = "no session begins with an earlier conversation"
_API = "says how a provider's API is called, which the harness decides"
_OF_TOOLS = "is about `tools` alone"
_REQUEST: Mapping[str, Rule] = {
    REQUEST: _refused("must be a mapping"),
    INPUT: _carried(INSTRUCTION),
    INSTRUCTIONS: _carried("agent.instructions"),
    f"{REQUEST}.tools": _refused(
        "they belong to a resources server of NeMo-Gym, which doesn't run here; the agent has its harness's own tools, and those of "
        "`agent.mcp_servers` in the template",
        "agent.mcp_servers",
    ),
    **{f"{REQUEST}.{name}": _neutral(_OF_TOOLS) for name in ("tool_choice", "parallel_tool_calls", "max_tool_calls")},
    **{f"{REQUEST}.{name}": _carried(f"sampling.{name}") for name in ("temperature", "top_p")},
    f"{REQUEST}.max_output_tokens": _carried("sampling.max_tokens"),
    f"{REQUEST}.model": _neutral(
        "NeMo-Gym's model servers replace it; `agent.model_name` in the template names a model"
    ),
    f"{REQUEST}.reasoning": _refused("how much a model reasons is the harness's to say"),
    f"{REQUEST}.text": _refused("a harness's answers have no prescribed form", neutral=({"format": {"type": "text"}},)),
    f"{REQUEST}.truncation": _refused("what a long conversation loses is the harness's to say", neutral=("disabled",)),
    f"{REQUEST}.top_logprobs": _refused("only the logprobs of sampled tokens are recorded"),
    f"{REQUEST}.previous_response_id": _refused(_EARLIER),
    f"{REQUEST}.prompt": _refused("a prompt that a provider keeps isn't fetched", INSTRUCTION),
    **{
        f"{REQUEST}.{name}": _neutral(_API)
        for name in ("background", "include", "service_tier", "store", "stream", "user")
    },
}
_RUN_OF_NEMO: Mapping[str, Rule] = {
    "skills_ref": _refused("the skills themselves aren't in the row", "agent.skills"),
    "response": _refused("the row is a finished rollout; import the rows that it was made from"),
    **{
        f"_ng_{name}": _neutral("a number of NeMo-Gym's run")
        for name in ("task_index", "rollout_index", "attempt_index", "rollout_id")
    },
}
_WRAPPED: Mapping[str, Rule] = {**_REQUEST, **_marked("agent_ref", "subset", "split"), **_RUN_OF_NEMO}
"""Fields that NeMo-Gym adds to rows of SWE-bench and SWE-Gym."""
FIELDS: Mapping[RowFormat, Mapping[str, Rule]] = {
    RowFormat.SWE_BENCH_4: {**_ISSUE, **_OWN, **_WRAPPED},
    RowFormat.SWE_BENCH_5: {
        **_ISSUE,
        "image": _carried(IMAGE),
        "eval_script": _carried(TEST_COMMAND, TEST_COMMAND, STRATEGY),
        "log_parser": _carried(f"{CONFIG}.parser", f"{CONFIG}.parser", STRATEGY),
        "eval_type": _refused(
            "such tests report failures alone, so a run that never began would pass", STRATEGY, neutral=("pass_and_fail",)
        ),
        "image_assets": _refused("files of the tests that are downloaded aren't fetched", STRATEGY, neutral=("{}",)),
        "test_assets": _refused("files of the tests beside the patch aren't uploaded", STRATEGY),
        **_marked("split", "datasets"),
    },
    RowFormat.SWE_GYM: {**_ISSUE, **_WRAPPED},
    RowFormat.SWE_SMITH: {
        "instance_id": _carried("task_id"),
        **_marked("repo"),
        "image_name": _carried(IMAGE),
        "patch": Rule(Outcome.CARRIED, "runtime.prepare"),
        "problem_statement": _carried(INSTRUCTION),
        **_TESTS,
        "created_at": _neutral(_HISTORY),
    },
    RowFormat.R2E_GYM: {
        **_marked("repo_name", "commit_hash"),
        "docker_image": _carried(IMAGE),
        "problem_statement": _carried(INSTRUCTION),
        "expected_output_json": _carried(f"{CONFIG}.expected_output_json", STRATEGY),
        "prompt": _neutral("the statement was written from it"),
        **dict.fromkeys(("parsed_commit_content", "modified_files", "modified_entity_summaries", "relevant_files"), _neutral(_SOLUTION)),
        **dict.fromkeys(("execution_result_content", "num_non_test_files"), _neutral(_HISTORY)),
        **dict.fromkeys(("num_non_test_func_methods", "num_non_test_lines"), _neutral(_HISTORY)),
    },
    RowFormat.NEMO_GYM: {**_REQUEST, "agent_ref": _carried(f"{NEMO_MARK}.agent_ref"), **_RUN_OF_NEMO},
    RowFormat.PLAIN: {},
}  # fmt: skip
NEEDED: Mapping[RowFormat, Mapping[str, str]] = {
    RowFormat.NEMO_GYM: {
        INSTRUCTION: "the row's input has no text of a user; give the template an instruction, which may name the row's fields",
        STRATEGY: "NeMo-Gym verifies answers in a resources server, which doesn't run here; give the template an evaluator, which may "
        "name the row's fields",
    },
    RowFormat.PLAIN: {
        INSTRUCTION: "a row of no known format needs one in the template, like instruction: '{{question}}'",
    },
}
"""Fields that the template must set if the row doesn't, with the reason for each."""
HIDDEN = {
    "patch",
    "test_patch",
    "eval_script",
    "parsed_commit_content",
    "execution_result_content",
    "expected_output_json",
    "expected_answer",
}
"""Fields with the solution or the tests: a template may name them for the evaluator alone."""


def recognised(fields: Mapping[str, Any]) -> RowFormat:
    """The format of a row, by its fields."""
    if fields.keys() >= {"repo_name", "docker_image", "expected_output_json"}:
        return RowFormat.R2E_GYM
    if not fields.keys() >= {"instance_id", "problem_statement", "FAIL_TO_PASS"}:
        return RowFormat.NEMO_GYM if REQUEST in fields else RowFormat.PLAIN
    if "eval_script" in fields or "log_parser" in fields:
        return RowFormat.SWE_BENCH_5
    if "image_name" in fields:
        return RowFormat.SWE_SMITH
    return RowFormat.SWE_GYM if str(fields.get("repo")).lower() in SWE_GYM_TESTS else RowFormat.SWE_BENCH_4


def name_of(fields: Mapping[str, Any], number: int) -> str:
    """The row's name in its set: what its dataset names it by, or `row-NUMBER`."""
    match recognised(fields):
        case RowFormat.PLAIN:
            found = next((fields[name] for name in NAMES if fields.get(name)), None)
        case RowFormat.NEMO_GYM:
            found = next((fields[name] for name in NEMO_NAMES if fields.get(name) not in (None, "")), None)
        case RowFormat.R2E_GYM:
            found = f"{fields['repo_name']}__{fields.get('commit_hash')}"
        case _:
            found = fields["instance_id"]
    return str(found) if isinstance(found, str | int) else f"row-{number}"
