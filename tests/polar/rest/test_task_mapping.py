"""NVIDIA's task bodies as ours. Pure."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.rest.task_mapping import check_files, request_of
from topics.types.errors import InputError
from topics.types.task import TaskRequest

SHELL = {"harness": "shell", "custom_shell": {"command": "true"}}


def body(**more: Any) -> dict[str, Any]:
    return {"task_id": "t", "instruction": "i", "agent": SHELL, **more}


def test_their_defaults_hold_where_ours_differ() -> None:
    task = request_of(body())
    assert (task.run_budget_s, task.builder.strategy, task.num_samples) == (600.0, "per_request", 1)


def test_a_dumped_model_of_theirs_with_its_nulls_is_the_same_task() -> None:
    dumped = body(
        runtime={
            "backend": "docker", "image": "python:3.12", "eval_prepare": None, "env": {}, "network": "host", "workdir": None,
            "cpus": None, "memory_mb": None, "storage_mb": None, "gpus": 0, "allow_internet": True, "import_path": None, "kwargs": {},
            "prepare": [
                {"type": "exec", "command": "true", "source": None, "target": None, "cwd": None, "env": {}},
            ],
        },
        agent={
            **SHELL, "import_path": None, "model_name": None, "settings": {}, "env": {}, "mcp_servers": [], "skills_path": None,
            "custom_shell": {"command": "true", "cwd": None, "env": {}},
        },
        evaluator=None, callback_url=None, early_stop_min_usable_sessions=None, dispatch_priority=0,
    )  # fmt: skip
    left_out = body(
        runtime={
            "backend": "docker",
            "image": "python:3.12",
            "network": "host",
            "prepare": [{"type": "exec", "command": "true"}],
        }
    )
    assert request_of(dumped).canonical() == request_of(left_out).canonical()


def test_nulls_of_free_form_values_stay() -> None:
    assert request_of(body(metadata={"label": None})).metadata == {"label": None}


def test_their_other_names_are_ours() -> None:
    task = request_of(body(num_samples=4, dispatch_priority=100, early_stop_min_usable_sessions=3))
    assert task.priority == 100
    assert task.early_stop is not None
    assert task.early_stop.usable == 3


@pytest.mark.parametrize(
    ("fields", "budget_s"),
    [
        ({"timeout_seconds": 50}, 50.0),
        ({"timeouts": {"run": 70}}, 70.0),
        ({"metadata": {"agent_timeout": 30}}, 30.0),
        ({"metadata": {"agent_timeout": 30}, "timeout_seconds": 20}, 20.0),
        ({"metadata": {"agent_timeout": 900}}, 600.0),
    ],
)
def test_the_shorter_budget_is_the_runs(fields: dict[str, Any], budget_s: float) -> None:
    assert request_of(body(**fields)).run_budget_s == budget_s


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_sample": 2}, "num_sample"),
        ({"agent": {**SHELL, "setings": {}}}, "agent.setings"),
        ({"metadata": {"agent_timeout": True}}, "metadata.agent_timeout"),
        ({"metadata": {"agent_timeout": float("inf")}}, "metadata.agent_timeout"),
        ({"dispatch_priority": 1, "priority": 2}, "dispatch_priority"),
        ({"early_stop_min_usable_sessions": 2}, "early_stop"),
        ({"timeout_seconds": "soon"}, "timeout_seconds"),
        ({"agent": None}, "agent"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        request_of(body(**fields))
    assert refused.value.field == field


@pytest.mark.parametrize("document", [None, [], "task", 3])
def test_only_an_object_is_a_task(document: object) -> None:
    with pytest.raises(InputError, match="must be a JSON object"):
        request_of(document)


def test_files_come_from_the_named_folder_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "files", tmp_path / "secret"
    inside.mkdir()
    outside.write_text("secret")
    (inside / "link").symlink_to(outside)
    (inside / "a.txt").write_text("a")

    def uploading(source: str) -> Any:
        return request_of(body(runtime={"prepare": [{"type": "upload_file", "source": source, "target": "x"}]}))

    for source in ("a.txt", str(inside / "a.txt")):
        check_files(uploading(source), inside)
    for source in ("../secret", str(outside), "link"):
        with pytest.raises(InputError, match="must be below"):
            check_files(uploading(source), inside)
    with pytest.raises(InputError, match="--files FOLDER"):
        check_files(uploading("a.txt"), None)
    skilled = request_of(body(agent={"harness": "pi", "skills": [{"source": str(tmp_path)}]}))
    with pytest.raises(InputError, match="must be below"):
        check_files(skilled, inside)
    check_files(request_of(body()), None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (*TaskRequest.model_fields, "dispatch_priority", "early_stop_min_usable_sessions")


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), st.sampled_from([None, "agent_timeout"]), JSON)
def test_any_json_is_a_task_or_an_input_error(fields: dict[str, Any], name: str | None, value: Any) -> None:
    document = body(**fields) if name is None else body(**{**fields, "metadata": {name: value}})
    with suppress(InputError):
        task = request_of(document)
        assert request_of(json.loads(task.canonical())).canonical() == task.canonical()
