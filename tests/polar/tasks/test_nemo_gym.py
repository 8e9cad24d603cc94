"""Import of NeMo-Gym rows: the request's texts, its sampling, and the data of its verifier."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks import nemo_gym, row_mapping
from polar.tasks.harbor_mapping import Mapped
from polar.tasks.harbor_rules import Outcome
from polar.tasks.row_options import RowOptions
from polar.tasks.row_rules import RowFormat, name_of, recognised
from polar.tasks.rows import Row
from tests.polar.tasks import swe
from topics.types.errors import InputError
from topics.types.task import CARRIED_LIMIT, TaskRequest

SCRIPT = {
    "strategy": "script",
    "env": {"EXPECTED": "{{expected_answer}}"},
    "config": {"command": 'test "$(cat answer.txt)" = "$EXPECTED" && echo 1 >"$POLAR_REWARD_DIR/reward.txt"'},
}
COMPLETED = {"strategy": "session_completed"}
TOOL = {"type": "function", "name": "weigh", "parameters": {"type": "object", "properties": {}}, "strict": True}
SUM: dict[str, Any] = {
    "uuid": "sum-1",
    "agent_ref": {"type": "responses_api_agents", "name": "sums_simple_agent"},
    "responses_create_params": {
        "input": [
            {"role": "system", "content": "Answer with a number."},
            {"role": "user", "content": "What is 17 + 4?"},
        ],
        "parallel_tool_calls": False,
        "tools": [],
        "temperature": 0.7,
        "top_p": None,
        "max_output_tokens": 512,
    },
    "question": "17 + 4",
    "expected_answer": "21",
}
"""A question with an answer, as of equivalence_llm_judge and its like."""
CODE: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "Print the sum of the numbers of a line."}]},
    "verifier_metadata": {"unit_tests": {"inputs": ["1 2\n"], "outputs": ["3\n"]}},
    "hash_id": "7f",
}
"""A program and its tests, as of code_gen."""
TOOLS: dict[str, Any] = {
    "id": 0,
    "responses_create_params": {
        "input": [
            {"role": "developer", "content": "Weigh everything."},
            {"role": "user", "content": "How heavy is it?"},
        ],
        "tools": [TOOL],
        "tool_choice": "auto",
    },
    "expected_call": {"name": "weigh", "arguments": {}},
}
"""Tools of a resources server, as of example_single_tool_call."""
ELSEWHERE: dict[str, Any] = {
    "instance_id": "rivers::rhine-1",
    "responses_create_params": {"input": []},
    "agent_ref": {"name": "harbor_agent"},
}
"""A task that the agent server knows by its name."""


def asking(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": list(items), **fields}}


def mapped(fields: dict[str, Any], template: dict[str, Any] | None = None, *ignored: str) -> Mapped:
    full = {"agent": {"harness": "pi"}, "evaluator": COMPLETED, **(template or {})}
    return row_mapping.mapped(Row("place", fields), name_of(fields, 1), full, RowOptions(ignored=ignored))


def refused(found: Mapped) -> str:
    (refusal,) = found.refusals
    return f"{refusal.name}: {refusal.becomes}"


def test_a_row_is_a_task_with_the_template_s_evaluator() -> None:
    request = mapped(SUM, {"evaluator": SCRIPT}).request()
    assert isinstance(request, TaskRequest), request
    assert (request.task_id, request.instruction) == ("sum-1", "What is 17 + 4?")
    assert request.agent.instructions == "Answer with a number."
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.7, 512)
    assert request.evaluator.env == {"EXPECTED": "21"}
    assert request.metadata == {"nemo_gym": {"agent_ref": SUM["agent_ref"], "uuid": "sum-1", "question": "17 + 4"}}


def test_every_field_of_a_row_has_an_outcome_unless_it_is_empty() -> None:
    found = mapped(SUM, {"evaluator": SCRIPT})
    fields = {name for name, value in nemo_gym.expanded(SUM).items() if value not in (None, [])}
    assert {one.name for one in found.findings} == fields
    outcomes = {one.name: one.outcome for one in found.findings}
    assert outcomes["responses_create_params.parallel_tool_calls"] is Outcome.NEUTRAL


@pytest.mark.parametrize("template", [{}, {"evaluator": {"config": {"command": "true"}}}])
def test_without_an_evaluator_a_row_is_refused(template: dict[str, Any]) -> None:
    found = row_mapping.mapped(Row("place", SUM), "name", {"agent": {"harness": "pi"}, **template}, RowOptions())
    assert refused(found).startswith("evaluator.strategy: NeMo-Gym verifies answers in a resources server")


def test_the_template_s_places_lead_into_the_verifier_s_data() -> None:
    evaluator = {
        "strategy": "script",
        "config": {"command": "cat >cases.json <<'END'\n{{verifier_metadata.unit_tests}}\nEND\npython grade.py"},
    }
    found = mapped(CODE, {"evaluator": evaluator})
    assert found.refusals == ()
    written = found.body["evaluator"]["config"]["command"].splitlines()[1]
    assert json.loads(written) == CODE["verifier_metadata"]["unit_tests"]
    assert found.body["metadata"] == {"nemo_gym": {"hash_id": "7f"}}
    assert mapped(CODE).body["metadata"]["nemo_gym"]["verifier_metadata"] == CODE["verifier_metadata"]


def test_the_template_may_name_the_texts() -> None:
    instruction = "{{responses_create_params.instructions}}\n{{responses_create_params.input}}\nWrite it to answer.txt."
    found = mapped(
        SUM, {"instruction": instruction, "agent": {"harness": "shell", "custom_shell": {"command": "true"}}}
    )
    assert found.body["instruction"] == "Answer with a number.\nWhat is 17 + 4?\nWrite it to answer.txt."
    assert "instructions" not in found.body["agent"]
    assert isinstance(found.request(), TaskRequest)
    image = asking({"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]})
    assert refused(mapped(image, {"instruction": instruction})).startswith("responses_create_params.input: item 1 has")


def test_the_template_s_instruction_takes_the_input_s_place() -> None:
    found = mapped({**ELSEWHERE, "prompt": "Name a river."}, {"instruction": "{{prompt}}"})
    assert (found.refusals, found.body["instruction"]) == ((), "Name a river.")
    image = asking({"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]})
    outcomes = {one.name: one.outcome for one in mapped(image, {"instruction": "Look."}).findings}
    assert outcomes == {"responses_create_params.input": Outcome.REPLACED}


def test_a_harness_without_instructions_refuses_a_system_message() -> None:
    template = {"agent": {"harness": "shell", "custom_shell": {"command": "true"}}}
    assert not isinstance(mapped(SUM, template).request(), TaskRequest)
    assert isinstance(mapped(CODE, template).request(), TaskRequest)


@pytest.mark.parametrize(
    "template", [{}, {"instruction": "Do this: {{responses_create_params.input}}"}], ids=["without", "named"]
)
@pytest.mark.parametrize("row", [ELSEWHERE, asking({"role": "system", "content": "Obey."}), {nemo_gym.REQUEST: {}}])
def test_a_row_without_a_user_s_text_is_refused(row: dict[str, Any], template: dict[str, Any]) -> None:
    assert refused(mapped(row, template)).startswith("instruction: the row's input has no text of a user")


USER = {"role": "user", "content": "Go on."}


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([USER, {"role": "assistant", "content": "Yes."}, USER], "item 2 is of 'assistant'"),
        ([USER, USER], "item 2 is of 'user'"),
        ([USER, {"role": "system", "content": "Now rhyme."}], "item 2 is of 'system'"),
        ([{"type": "function_call", "name": "weigh", "arguments": "{}"}, USER], "item 1 is of 'function_call'"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "1"}]}], "item 1 has 'input_file'"),
        ([{"role": "user"}], "item 1 has no content"),
        (["Go on."], "item 1 is of 'str'"),
    ],
)
def test_an_input_that_is_no_instruction_is_refused(items: list[Any], reason: str) -> None:
    assert refused(mapped({"responses_create_params": {"input": items}})).startswith(f"{nemo_gym.INPUT}: {reason}")


def test_the_texts_of_a_request() -> None:
    parts = [{"type": "input_text", "text": "Name "}, {"type": "input_text", "text": "a river."}]
    row = asking({"type": "message", "role": "developer", "content": "Be short."}, {"role": "user", "content": parts})
    row["responses_create_params"]["instructions"] = "Be kind."
    found = mapped(row)
    assert found.body["instruction"] == "Name a river."
    assert found.body["agent"]["instructions"] == "Be kind.\n\nBe short."
    assert mapped({"responses_create_params": {"input": "Name a river."}}).body["instruction"] == "Name a river."


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}, "text"),
        ({"truncation": "auto"}, "truncation"),
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"metadata": {"extra_body": "{}"}}, "metadata"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_what_a_request_asks_in_vain_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    row = asking(USER, **fields)
    name = f"responses_create_params.{field}"
    assert refused(mapped(row)).startswith(f"{name}: ")
    assert mapped(row, None, name).refusals == ()


def test_the_template_s_servers_take_the_tools_place() -> None:
    assert refused(mapped(TOOLS)).startswith("responses_create_params.tools: they belong to a resources server")
    agent = {"harness": "codex", "mcp_servers": [{"name": "scales", "transport": "stdio", "command": "scales"}]}
    found = mapped(TOOLS, {"agent": agent})
    assert isinstance(found.request(), TaskRequest)
    assert found.body["task_id"] == "0"


def test_a_finished_rollout_is_refused() -> None:
    row = {**SUM, "_ng_task_index": 3, "_ng_rollout_index": 1, "response": {"output": []}, "reward": 1.0}
    assert refused(mapped(row)).startswith("response: the row is a finished rollout")


def test_the_answer_is_hidden_from_the_agent() -> None:
    with pytest.raises(InputError, match="would show the agent"):
        mapped(SUM, {"instruction": "It is {{expected_answer}}."})


def test_what_is_too_large_for_metadata_is_refused_by_name() -> None:
    row = {**CODE, "verifier_metadata": {"unit_tests": "1" * CARRIED_LIMIT}}
    assert refused(mapped(row)).startswith(f"verifier_metadata: with it metadata has more than {CARRIED_LIMIT} bytes")
    evaluator = {"strategy": "script", "config": {"command": "grade {{verifier_metadata.unit_tests}}"}}
    assert mapped(row, {"evaluator": evaluator}).refusals == ()


@pytest.mark.parametrize("text", ["", "power(2, 3) is 6."])
def test_a_row_of_swe_bench_in_nemo_gym_s_form_has_its_own_evaluator(text: str) -> None:
    wrap = asking(*([{"role": "user", "content": text}] if text else []), model="m")
    row = {**swe.a_row(test_command="true"), **wrap, "subset": "verified", "split": "test"}
    assert recognised(row) is RowFormat.SWE_BENCH_4
    found = row_mapping.mapped(Row("place", row), "name", {"agent": {"harness": "pi"}}, RowOptions())
    assert found.refusals == ()
    assert (found.body["instruction"], found.body["evaluator"]["strategy"]) == ("power(2, 3) is 6.", "swebench")
    assert found.body["metadata"]["swe"]["subset"] == "verified"


def test_another_input_than_the_problem_is_refused() -> None:
    row = {**swe.a_row(test_command="true"), **asking(USER)}
    found = row_mapping.mapped(Row("place", row), "name", {"agent": {"harness": "pi"}}, RowOptions())
    assert refused(found).startswith("responses_create_params.input: not the row's problem_statement")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["user", "system", "input_text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "input", "instructions"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(VALUES, st.dictionaries(st.sampled_from(["id", "answer", "agent_ref", "response"]), VALUES))
def test_every_row_is_mapped_or_refused(request: Any, fields: dict[str, Any]) -> None:
    """None raises anything, and a task that isn't refused has the user's text."""
    found = mapped({**fields, "responses_create_params": request})
    assert found.refusals or found.body["instruction"]
