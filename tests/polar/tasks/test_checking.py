"""What a check runs for a task, and the verdicts on what came of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polar.cli import task_check
from polar.task_bodies import BODY_LIMIT
from polar.tasks import checking
from polar.tasks.checking import Attempt, CheckedTask, Requests, Verdict, checked, identified
from polar.tasks.repositories import Repositories
from polar.tasks.row_options import RowOptions
from polar.tasks.rows import Row
from polar.tasks.task_sets import Member, RowMember
from polar.uploads import Uploads
from tests.polar.tasks.writing import AGENT, mapped_task, read
from topics.environment.blobs import FolderBlobs
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status
from topics.types.task import TaskRequest
from topics.types.uploads import PrepareAction

SOLVED: dict[str, str | None] = {"solution__solve_sh": "true"}
IN_WORKSPACE: dict[str, Any] = {
    "runtime": {"prepare": [{"type": "exec", "command": "mkdir app"}]},
    "evaluator": {"strategy": "session_completed"},
}


def requests(
    folder: Path,
    config: dict[str, Any] | None = None,
    template: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
    files: dict[str, str | None] = SOLVED,
    **options: Any,
) -> Requests | CheckedTask:
    task = read(folder, config or {}, **files)
    options = {"run": "night"} | options
    return checking.requests(Member(folder.name, folder), task, template or {}, variables or {}, **options)


def made(*arguments: Any, **options: Any) -> Requests:
    found = requests(*arguments, **options)
    assert isinstance(found, Requests), found
    return found


def uploads(request: TaskRequest) -> list[PrepareAction]:
    return [one for one in (*request.runtime.prepare, *(request.runtime.eval_prepare or ())) if one.type != "exec"]


def command(request: TaskRequest) -> str:
    assert request.agent.custom_shell is not None
    return request.agent.custom_shell.command


def test_a_task_that_is_too_large_has_an_error_as_its_verdict(tmp_path: Path) -> None:
    found = made(tmp_path)
    large = found.solution.model_copy(update={"instruction": "x" * BODY_LIMIT})
    case = task_check._Case(Member(tmp_path.name, tmp_path), Requests(large, found.nothing))
    assert list(case.submitted(Uploads(FolderBlobs(tmp_path / "blobs")))) == []
    assert isinstance(case.requests, CheckedTask)
    assert case.requests.verdict is Verdict.ERROR
    assert f"at most {BODY_LIMIT} bytes" in (case.requests.reason or "")


def test_the_solution_is_uploaded_where_it_runs_and_nowhere_else(tmp_path: Path) -> None:
    found = made(tmp_path)
    (solution,) = [one for one in uploads(found.solution) if one not in uploads(found.nothing)]
    assert (solution.source, solution.target) == (str(tmp_path / "solution"), "/solution")
    assert solution in found.solution.runtime.prepare
    assert command(found.solution) == "chmod +x /solution/solve.sh && /solution/solve.sh"
    assert command(found.nothing) == "true"
    assert found.solution.evaluator == found.nothing.evaluator
    assert found.solution.runtime.eval_prepare == found.nothing.runtime.eval_prepare


def test_an_import_uploads_nothing_of_the_solution(tmp_path: Path) -> None:
    read(tmp_path, {"solution": {"env": {"ANSWER": "42"}}}, **SOLVED)
    request = mapped_task(tmp_path, {"solution": {"env": {"ANSWER": "42"}}}, AGENT).request()
    assert isinstance(request, TaskRequest)
    for one in (request, made(tmp_path, {"solution": {"env": {"ANSWER": "42"}}}).nothing):
        assert "solution" not in one.canonical().decode()
        assert "ANSWER" not in one.canonical().decode()


def test_without_an_image_the_solution_is_in_the_workspace_and_any_command_may_run_it(tmp_path: Path) -> None:
    found = made(tmp_path, template=IN_WORKSPACE)
    assert [one.target for one in uploads(found.solution)] == ["solution"]
    assert [one.command for one in found.solution.runtime.prepare] == ["mkdir app", None]
    assert command(found.solution) == "chmod +x solution/solve.sh && solution/solve.sh"
    own = made(tmp_path, template=IN_WORKSPACE, solve="ROOT=$PWD bash solution/solve.sh")
    assert command(own.solution) == "ROOT=$PWD bash solution/solve.sh"


def test_the_solution_has_its_variables(tmp_path: Path) -> None:
    config = {"solution": {"env": {"KEY": "${THEIR_KEY}", "LEVEL": "2"}}}
    found = made(tmp_path, config, variables={"THEIR_KEY": "k"})
    assert found.solution.agent.custom_shell is not None
    assert found.solution.agent.custom_shell.env == {"DEBIAN_FRONTEND": "noninteractive", "KEY": "k", "LEVEL": "2"}
    refused = requests(tmp_path, config)
    assert isinstance(refused, CheckedTask)
    assert refused.verdict is Verdict.ERROR
    assert "give it by --env THEIR_KEY" in (refused.reason or "")


def test_a_check_is_two_sessions_of_its_run_that_no_trainer_reads(tmp_path: Path) -> None:
    template = {
        "agent": {"harness": "pi"},
        "num_samples": 8,
        "early_stop": {"usable": 4},
        "callback_url": "https://trainer.example/",
        "output_topic": "mine",
        "run": "grpo",
        "priority": 7,
    }
    found = made(tmp_path, template=template)
    for one in (found.solution, found.nothing):
        assert (one.num_samples, one.output, one.run, one.priority) == (1, "eval", "night", 7)
        assert (one.early_stop, one.callback_url, one.agent.harness) == (None, None, "shell")


def test_a_task_without_a_solution_runs_nothing(tmp_path: Path) -> None:
    found = requests(tmp_path, files={})
    assert isinstance(found, CheckedTask)
    reason = "the task has no solution/solve.sh; give --solve COMMAND, which solves it"
    assert (found.verdict, found.reason) == (Verdict.NO_SOLUTION, reason)


def test_a_command_solves_a_task_without_a_solution_and_a_folder_without_a_script_is_uploaded(tmp_path: Path) -> None:
    found = made(tmp_path / "a", files={}, solve="touch solved")
    assert command(found.solution) == "touch solved"
    assert uploads(found.solution) == uploads(found.nothing)
    found = made(tmp_path / "b", files={"solution/answer.txt": "42"}, solve="cp /solution/answer.txt .")
    assert [one.target for one in uploads(found.solution) if one not in uploads(found.nothing)] == ["/solution"]


def test_a_task_that_is_refused_or_leads_elsewhere_is_an_error_with_its_reason(tmp_path: Path) -> None:
    refused = requests(tmp_path / "a", {"environment": {"gpu_types": ["H100"]}})
    assert isinstance(refused, CheckedTask)
    assert (refused.verdict, (refused.reason or "").startswith("environment.gpu_types: no")) == (Verdict.ERROR, True)
    (tmp_path / "elsewhere").mkdir()
    read(tmp_path / "b")
    (tmp_path / "b/solution").symlink_to(tmp_path / "elsewhere")
    linked = requests(tmp_path / "b", files={})
    assert isinstance(linked, CheckedTask)
    assert (linked.verdict, "leads out of" in (linked.reason or "")) == (Verdict.ERROR, True)


def test_the_same_check_is_the_same_task_and_any_other_is_another(tmp_path: Path) -> None:
    found = made(tmp_path / ("n" * 100))
    ids = [
        identified(request, kind).task_id
        for request, kind in ((found.solution, "solution"), (found.nothing, "nothing"))
    ]
    assert len(set(ids)) == 2
    assert ids[0].startswith("n" * 100 + "-solution-")
    assert identified(found.solution, "solution").task_id == ids[0]
    assert identified(made(tmp_path / ("n" * 100), run="day").solution, "solution").task_id != ids[0]
    longest = found.solution.model_copy(update={"task_id": "n" * 128})
    assert len(identified(longest, "solution").task_id) == 128
    TaskRequest.model_validate(identified(longest, "nothing").model_dump())


def attempt(name: str, reward: float | None, reason: str | None = None) -> Attempt:
    return Attempt(f"{name}.0", Status.COMPLETED, reward, reason)


@pytest.mark.parametrize(
    ("solution", "nothing", "verdict", "reason", "session"),
    [
        (1.0, 0.0, Verdict.USABLE, "solution: why", None),
        (0.0, 0.0, Verdict.SOLUTION_FAILS, "reward 0, not 1: why", "s.0"),
        (0.999, 0.0, Verdict.SOLUTION_FAILS, "reward 0.999, not 1: why", "s.0"),
        (0.0, 1.0, Verdict.SOLUTION_FAILS, "reward 0, not 1: why", "s.0"),
        (1.0, 0.25, Verdict.NOTHING_PASSES, "reward 0.25, not 0: why", "n.0"),
        (1.0, -1.0, Verdict.NOTHING_PASSES, "reward -1, not 0: why", "n.0"),
        (None, 0.0, Verdict.ERROR, "solution: no reward: why", "s.0"),
        (None, 1.0, Verdict.ERROR, "solution: no reward: why", "s.0"),
        (1.0, None, Verdict.ERROR, "nothing: no reward: why", "n.0"),
    ],
)
def test_the_two_rewards_decide(
    tmp_path: Path,
    solution: float | None,
    nothing: float | None,
    verdict: Verdict,
    reason: str | None,
    session: str | None,
) -> None:
    found = checked(Member("a", tmp_path), attempt("s", solution, "why"), attempt("n", nothing, "why"))
    assert (found.verdict, found.reason, found.session_id) == (verdict, reason, session)


def test_a_usable_task_says_what_went_wrong_all_the_same(tmp_path: Path) -> None:
    member = Member("a", tmp_path)
    flaw = "runtime.collect[0] ended with exit code 1"
    found = checked(member, attempt("s", 1.0, flaw), attempt("n", 0.0, "no answer.txt"))
    assert (found.verdict, found.reason, found.session_id) == (Verdict.USABLE, f"solution: {flaw}", None)
    failed = replace(attempt("n", 0.0, "run infra/lost: gone"), status=Status.FAILED)
    assert checked(member, attempt("s", 1.0), failed).reason == "nothing: run infra/lost: gone"
    assert checked(member, attempt("s", 1.0), attempt("n", 0.0, "no answer.txt")).reason is None


def test_an_attempt_says_why_it_has_its_reward() -> None:
    def of(**more: Any) -> str | None:
        return Attempt.of(SessionState("t.0", "t", 0, Phase.ENDED, 0, **more)).reason

    failed = SessionError("run", Kind.AGENT, "exit_code", "ended with 3")
    crashed = SessionError("evaluate", Kind.EVALUATION, "no_reward_file", "none")
    null = {"error": crashed, "evaluation_error": crashed, "reward_reason": "evaluation/no_reward_file: none"}
    assert of(status=Status.COMPLETED) is None
    assert of(status=Status.CANCELLED) == "CANCELLED"
    assert of(status=Status.COMPLETED, reward_reason="1 of 2") == "1 of 2"
    assert of(status=Status.FAILED, error=failed, reward_reason="1 of 2") == "run agent/exit_code: ended with 3; 1 of 2"
    assert of(status=Status.FAILED, **null) == "evaluation/no_reward_file: none"


ROW = {
    "instance_id": "calc-1",
    "repo": "mine/calc",
    "base_commit": "0" * 40,
    "problem_statement": "Mend it.",
    "patch": "diff --git a/a b/a\n",
    "test_patch": "",
    "FAIL_TO_PASS": ["t"],
    "PASS_TO_PASS": [],
    "test_command": "true",
    "parser": "tap",
}


def row_requests(solve: str | None = None, **changes: Any) -> Requests | CheckedTask:
    row = Row("rows.jsonl, line 1", {name: value for name, value in (ROW | changes).items() if value is not None})
    options = RowOptions(repositories=Repositories({"mine/calc": "/somewhere"}, Path("/bundles")))
    return checking.requests(RowMember("calc-1", row), row, {}, {}, run="night", solve=solve, options=options)


def test_what_a_task_gives_its_agent_is_left_out(tmp_path: Path) -> None:
    servers = [{"name": "scales", "transport": "stdio", "command": "scales"}]
    both = made(tmp_path, {"environment": {"mcp_servers": servers}}, IN_WORKSPACE)
    assert (both.solution.agent.mcp_servers, both.nothing.agent.mcp_servers) == ([], [])
    assert both.nothing.agent.harness == "shell"


def test_a_row_s_patch_is_applied_by_one_request_and_in_no_other() -> None:
    found = row_requests()
    assert isinstance(found, Requests), found
    assert command(found.solution).endswith("git apply --whitespace=nowarn")
    assert found.solution.agent.custom_shell is not None
    assert found.solution.agent.custom_shell.env == {checking.PATCH: ROW["patch"]}
    assert command(found.nothing) == "true"
    assert b"diff --git" not in found.nothing.canonical()


def test_a_row_of_swe_smith_is_solved_by_the_reverse_of_its_patch() -> None:
    only_here = dict.fromkeys(("test_command", "parser", "test_patch", "base_commit"))
    found = row_requests(repo="swesmith/a.1", image_name="a/b:c", FAIL_TO_PASS=["tests/test_a.py::t"], **only_here)
    assert isinstance(found, Requests), found
    assert command(found.solution).endswith(" -R")


def test_a_row_without_a_patch_has_no_solution() -> None:
    found = row_requests(patch=None)
    assert isinstance(found, CheckedTask)
    reason = "the row has no field `patch` with its solution; give --solve COMMAND, which solves it"
    assert (found.verdict, found.reason) == (Verdict.NO_SOLUTION, reason)
    found = row_requests(patch=None, solve="true")
    assert isinstance(found, Requests), found
    assert command(found.solution) == "true"


@pytest.mark.parametrize(
    ("fields", "lack"),
    [
        ({"id": "sum-1", "sum": 3}, "the row has no field `patch`"),
        ({"uuid": "sum-1", "responses_create_params": {"input": "1 + 2?"}, "patch": "3"}, "rows of NeMo-Gym have no"),
    ],
)
def test_a_command_solves_rows_of_formats_without_a_patch(fields: dict[str, Any], lack: str) -> None:
    template = {"instruction": "Add.", "evaluator": {"strategy": "session_completed"}}

    def of(solve: str | None) -> Requests | CheckedTask:
        row = Row("rows.jsonl, line 1", fields)
        return checking.requests(RowMember("sum-1", row), row, template, {}, run="night", solve=solve)

    found = of("echo 3 > answer.txt")
    assert isinstance(found, Requests), found
    assert found.solution.agent.custom_shell is not None
    assert (command(found.solution), found.solution.agent.custom_shell.env) == ("echo 3 > answer.txt", {})
    lacking = of(None)
    assert isinstance(lacking, CheckedTask)
    assert (lacking.verdict, lack in (lacking.reason or "")) == (Verdict.NO_SOLUTION, True)
