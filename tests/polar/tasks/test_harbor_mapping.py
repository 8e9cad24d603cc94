"""Nothing of a Harbor task is ignored: each field and file is carried, neutral, replaced, or it refuses the task by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks.harbor_folder import HarborTask, decoded
from polar.tasks.harbor_mapping import Mapped, mapped, task_id
from polar.tasks.harbor_rules import FIELDS, FILES, TESTS, Outcome
from polar.tasks.harbor_schema import Config
from polar.tasks.task_sets import Member
from tests.polar.tasks.fields import leaves
from tests.polar.tasks.writing import AGENT, IN_PLACE, mapped_task, nested
from topics.types import ids
from topics.types.errors import InputError
from topics.types.runtime import UNKEPT, HealthcheckSpec, Network, Seen
from topics.types.task import TaskRequest

SET: dict[str, Any] = {
    "schema_version": "1.2",
    "task.name": "org/task",
    "task.version": "3",
    "task.description": "words",
    "task.authors": [{"name": "ana"}],
    "task.keywords": ["x"],
    "metadata": {"difficulty": "easy"},
    "source": "somewhere",
    "agent.network_mode": "no-network",
    "agent.allowed_hosts": ["pypi.org"],
    "agent.timeout_sec": 60.0,
    "agent.user": "ana",
    "verifier.network_mode": "no-network",
    "verifier.allowed_hosts": ["pypi.org"],
    "verifier.timeout_sec": 30.0,
    "verifier.env": {"A": "b"},
    "verifier.user": 1000,
    "verifier.environment_mode": "separate",
    "verifier.environment": {"docker_image": "a:1"},
    "verifier.collect": [{"command": "dump"}],
    "environment.network_mode": "public",
    "environment.allowed_hosts": ["pypi.org"],
    "environment.build_timeout_sec": 10.0,
    "environment.docker_image": "a:1",
    "environment.os": "windows",
    "environment.cpus": 2.0,
    "environment.memory_mb": 512,
    "environment.storage_mb": 1024,
    "environment.gpus": 1,
    "environment.gpu_types": ["H100"],
    "environment.tpu": {"type": "v6e", "topology": "2x2"},
    "environment.mcp_servers": [{"name": "a", "url": "http://a"}],
    "environment.env": {"A": "b"},
    "environment.skills_dir": "/skills",
    "environment.healthcheck": {"command": "true"},
    "environment.workdir": "sub",
    "solution.env": {"A": "b"},
    "multi_step_reward_strategy": "final",
    "steps": [{"name": "one"}],
    "artifacts": ["/app/log"],
}
"""A value for each field."""
CARRIED: dict[str, tuple[str, Any]] = {
    "task.name": ("metadata.harbor.task.name", "org/task"),
    "metadata": ("metadata.harbor.metadata", {"difficulty": "easy"}),
    "source": ("metadata.harbor.source", "somewhere"),
    "agent.network_mode": ("runtime.network", "proxy_only"),
    "agent.timeout_sec": ("timeouts.run", 60.0),
    "verifier.network_mode": ("runtime.verifier_network", "none"),
    "verifier.timeout_sec": ("timeouts.evaluate", 30.0),
    "verifier.env": ("evaluator.env", {"A": "b"}),
    "agent.user": ("runtime.user", "ana"),
    "verifier.user": ("runtime.user", "1000"),
    "verifier.collect": ("runtime.collect", [{"command": "dump"}]),
    "environment.network_mode": ("runtime.network", "host"),
    "environment.build_timeout_sec": ("timeouts.init", 10.0),
    "environment.cpus": ("runtime.cpus", 2.0),
    "environment.memory_mb": ("runtime.memory_mb", 512),
    "environment.storage_mb": ("runtime.storage_mb", 1024),
    "environment.gpus": ("runtime.gpus", 1),
    "environment.env": ("runtime.env", {"A": "b"}),
    "environment.mcp_servers": ("agent.mcp_servers", [{"name": "a", "url": "http://a"}]),
    "environment.skills_dir": ("agent.skills_path", "/skills"),
    "environment.workdir": ("runtime.workdir", "sub"),
    "environment.healthcheck": ("runtime.healthcheck", {"command": "true"}),
}
UNBUILT = {
    "environment.os",
    "environment.gpu_types", "environment.tpu",
    "multi_step_reward_strategy", "steps", "artifacts",
}  # fmt: skip


def at(body: Any, field: str) -> Any:
    for name in field.split("."):
        body = body.get(name) if isinstance(body, dict) else None
    return body


def config(*fields: str) -> dict[str, Any]:
    """A configuration with these fields, and with what they need."""
    made: dict[str, Any] = {}
    for field in fields:
        part = made
        for name in field.split(".")[:-1]:
            part = part.setdefault(name, {})
        part[field.rpartition(".")[2]] = SET[field]
    for part in made.values():
        if isinstance(part, dict) and "allowed_hosts" in part:
            part["network_mode"] = "allowlist"
    if "task" in made:
        made["task"].setdefault("name", "org/task")
    return made


def outcomes(found: Mapped, name: str) -> list[Outcome]:
    return [finding.outcome for finding in found.findings if finding.name == name]


def test_the_table_has_every_field_of_the_schema() -> None:
    assert set(leaves()) == FIELDS.keys() == SET.keys()


@pytest.mark.parametrize("field", sorted(SET))
def test_no_field_is_ignored(tmp_path: Path, field: str) -> None:
    found = mapped_task(tmp_path, config(field))
    assert outcomes(found, field)
    assert (Outcome.REFUSED in outcomes(found, field)) == (
        field in UNBUILT or (field == "environment.docker_image" and "image" in UNKEPT["cell"])
    )


REPLACED = (
    "evaluator.strategy",
    "runtime.network",
    "runtime.verifier_network",
    "runtime.allowed_hosts",
    "runtime.image",
    "runtime.prepare",
    "timeouts.run",
)


@given(st.sets(st.sampled_from(sorted(SET))), st.sets(st.sampled_from(REPLACED)))
def test_no_field_is_ignored_beside_others(fields: set[str], replaced: set[str]) -> None:
    """Every field has a finding, and whatever isn't refused and has no field of the template in its place is in the body."""
    template: dict[str, Any] = {}
    for field in replaced:
        first, second = field.split(".")
        template.setdefault(first, {})[second] = "of the template"
    task = HarborTask(Path("nowhere"), decoded(Config, config(*fields), Path("task.toml")), "Craft it.")
    found = mapped(Member("t", Path("nowhere")), task, template)
    for field in fields:
        assert outcomes(found, field), field
    for finding in found.findings:
        if finding.outcome is Outcome.CARRIED:
            assert at(found.body, finding.becomes.partition(":")[0]) is not None, finding
    for field in replaced:
        assert at(found.body, field) == "of the template"


@pytest.mark.parametrize("field", sorted(CARRIED))
def test_a_carried_field_is_in_the_task(tmp_path: Path, field: str) -> None:
    target, value = CARRIED[field]
    assert at(mapped_task(tmp_path, config(field)).body, target) == value


@pytest.mark.parametrize("field", sorted(UNBUILT))
def test_a_refusal_says_why_and_for_which_value(tmp_path: Path, field: str) -> None:
    refusal = next(one for one in mapped_task(tmp_path, config(field)).refusals if one.name == field)
    assert json.dumps(SET[field])[1:-1] in json.dumps([refusal.value])
    assert len(refusal.becomes.split()) > 3


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_with_a_meaning_is_ignored(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "x" if name in ("tests", "solution") else tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    found = mapped_task(tmp_path, {})
    assert outcomes(found, name) == [FILES[name].outcome]


@pytest.mark.parametrize(("value", "field"), [("linux", "environment.os"), ("shared", "verifier.environment_mode")])
def test_what_polar_does_anyway_is_neutral(tmp_path: Path, value: object, field: str) -> None:
    assert outcomes(mapped_task(tmp_path, nested(field, value)), field) == [Outcome.NEUTRAL]


def test_mcp_servers_go_to_a_cli_that_connects_to_them(tmp_path: Path) -> None:
    web = {
        "name": "web",
        "transport": "http",
        "url": "https://a.org/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}"},
    }
    local = {"name": "local", "transport": "stdio", "command": "python3", "args": ["/opt/server.py"]}
    config: dict[str, Any] = {"environment": {"mcp_servers": [web, local]}}

    def request(harness: str, **variables: str) -> Any:
        template = {**IN_PLACE, "agent": {"harness": harness}}
        return mapped_task(tmp_path, config, template, **variables).request()

    first, second = request("claude_code", TOKEN="t-1").agent.mcp_servers
    assert (first.transport, first.headers) == ("streamable-http", {"Authorization": "Bearer t-1"})
    assert (second.command, second.args) == ("python3", ["/opt/server.py"])
    refusal = request("claude_code")
    assert (refusal.name, refusal.becomes) == (
        "environment.mcp_servers",
        "Authorization needs a value for ${TOKEN}; give it by --env TOKEN",
    )
    refusal = request("pi", TOKEN="t-1")
    assert refusal.name == "agent.mcp_servers.0"
    assert "pi connects to no MCP servers" in refusal.becomes
    config["environment"]["network_mode"] = "no-network"
    assert "reached" in request("claude_code", TOKEN="t-1").becomes


def test_a_template_takes_the_place_of_what_cannot_be_done(tmp_path: Path) -> None:
    settings = {"agent": {"timeout_sec": 60}, "verifier": {"environment_mode": "separate", "timeout_sec": 5}}
    found = mapped_task(tmp_path, settings, {**IN_PLACE, "num_samples": 4, "timeouts": {"run": 7}})
    request = found.request()
    assert isinstance(request, TaskRequest), request
    assert (request.num_samples, request.timeouts.run, request.evaluator.strategy) == (4, 7, "session_completed")
    assert request.timeouts.evaluate == 600
    assert outcomes(found, "agent.timeout_sec") == [Outcome.REPLACED]
    assert outcomes(found, "environment/Dockerfile") == outcomes(found, "tests") == [Outcome.REPLACED]


def test_a_template_adds_variables_and_metadata(tmp_path: Path) -> None:
    template = {
        **IN_PLACE,
        "runtime": {**IN_PLACE["runtime"], "env": {"B": "2", "C": "3"}},
        "metadata": {"user": "ana"},
    }
    config = {"environment": {"env": {"A": "1", "B": "1"}}, "metadata": {"user": "theirs", "day": "x"}}
    request = mapped_task(tmp_path, config, template).request()
    assert isinstance(request, TaskRequest), request
    assert request.runtime.env == {"A": "1", "B": "2", "C": "3"}
    assert request.user == "ana"
    assert request.metadata["harbor"]["metadata"] == {"user": "theirs", "day": "x"}


@pytest.mark.parametrize("field", ["task_id", "instruction", "metadata.harbor"])
def test_a_template_has_no_field_that_the_task_decides(tmp_path: Path, field: str) -> None:
    with pytest.raises(InputError, match="comes from the task"):
        mapped_task(tmp_path, {}, {**AGENT, **nested(field, "x")})


@pytest.mark.parametrize(
    "field",
    ["runtime.image", "runtime.network", "runtime.env", "runtime.prepare", "runtime", "timeouts.run", "timeouts",
     "evaluator", "evaluator.strategy", "evaluator.env", "metadata", "metadata.harbor"],
)  # fmt: skip
def test_a_template_has_no_null_for_what_a_task_sets(tmp_path: Path, field: str) -> None:
    """It would be neither the task's value nor another one."""
    with pytest.raises(InputError, match="leave it out for the task's, or give a value") as error:
        mapped_task(tmp_path, {}, {**AGENT, **nested(field, None)})
    assert error.value.field == f"--template: {field}"


def test_the_tests_of_a_task_with_an_image_are_its_evaluation(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("")
    config = {"environment": {"docker_image": "a:1"}, "verifier": {"timeout_sec": 60}}
    request = mapped_task(tmp_path, config, AGENT).request()
    assert isinstance(request, TaskRequest), request
    assert (request.evaluator.strategy, request.runtime.verifier_sees) == ("harbor", Seen.EVERYTHING)
    assert [(one.type, one.target) for one in request.runtime.eval_prepare or ()][-1] == ("upload_dir", "/tests")
    narrowed = mapped_task(tmp_path, config, {**AGENT, "runtime": {"verifier_sees": "workspace"}}).request()
    assert isinstance(narrowed, TaskRequest), narrowed
    assert narrowed.runtime.verifier_sees is Seen.WORKSPACE
    own = mapped_task(tmp_path, config, {**AGENT, "runtime": {"eval_prepare": [{"type": "exec", "command": "true"}]}})
    assert outcomes(own, TESTS) == [Outcome.REFUSED]


USERS: list[tuple[dict[str, Any], str | None]] = [
    ({"agent": {"user": "ana"}, "verifier": {"user": "ana"}}, "ana"),
    ({"agent": {"user": 0}, "verifier": {"user": "root"}}, "root"),
    ({"verifier": {"user": 0, "collect": [{"command": "dump", "user": "root"}]}}, "root"),
    ({"agent": {"user": "ana"}, "verifier": {"user": "root"}}, None),
    ({"agent": {"user": "ana"}, "verifier": {"collect": [{"command": "dump", "user": "root"}]}}, None),
    ({"verifier": {"collect": [{"command": "dump", "user": "root"}]}}, None),
]


@pytest.mark.parametrize(("parts", "user"), USERS)
def test_all_programs_of_a_sandbox_are_one_user(tmp_path: Path, parts: dict[str, Any], user: str | None) -> None:
    found = mapped_task(tmp_path, {"environment": {"docker_image": "a:1"}} | parts).request()
    if user is None:
        assert not isinstance(found, TaskRequest)
        assert "every program of a sandbox is one user" in found.becomes
    else:
        assert isinstance(found, TaskRequest), found
        assert found.runtime.user == user


def test_what_cannot_be_kept_names_a_way_out(tmp_path: Path) -> None:
    verifier = {"collect": [{"command": "dump"}]}
    apart = {**AGENT, "runtime": {"verifier_sees": "workspace"}}
    image = {"environment": {"docker_image": "a:1"}}

    def refusal(config: dict[str, Any], template: dict[str, Any]) -> tuple[str, str]:
        found = mapped_task(tmp_path, image | config, template).request()
        assert not isinstance(found, TaskRequest)
        return found.name, found.becomes

    name, becomes = refusal({"verifier": verifier}, apart)
    assert (name, "runtime.collect" in becomes) == ("verifier.collect", True)
    assert (
        "leave runtime.verifier_sees out of the template, or give the verifier environment_mode 'separate'" in becomes
    )
    separate = mapped_task(tmp_path, image | {"verifier": verifier | {"environment_mode": "separate"}}, apart)
    assert isinstance(separate.request(), TaskRequest)
    assert isinstance(mapped_task(tmp_path, image | {"verifier": verifier}, AGENT).request(), TaskRequest)
    name, becomes = refusal({"artifacts": ["out"]}, AGENT)
    assert (name, "or give the verifier environment_mode 'separate'" in becomes) == ("artifacts", True)
    for rule in (*FIELDS.values(), *FILES.values()):
        assert rule.outcome is not Outcome.REFUSED or rule.replaced_by or "--skip-refused" in rule.becomes


def test_a_user_is_for_cells(tmp_path: Path) -> None:
    config = {"environment": {"docker_image": "a:1"}, "agent": {"user": "ana"}}
    template = {**IN_PLACE, "runtime": {"backend": "docker"}}
    refusal = mapped_task(tmp_path, config, template).request()
    assert not isinstance(refusal, TaskRequest)
    assert "user='ana' can't be kept by runtime.backend 'docker'" in refusal.becomes


def test_a_health_check_has_time_of_its_own(tmp_path: Path) -> None:
    """As much as it can need: ten seconds in which failures don't count, a last try in them, and one more."""
    check = {
        "command": "ls",
        "retries": 0,
        "timeout_sec": 2,
        "interval_sec": 3,
        "start_period_sec": 10,
        "start_interval_sec": 4,
    }
    config = {"environment": {"docker_image": "a:1", "healthcheck": check, "build_timeout_sec": 100}}
    request = mapped_task(tmp_path, config, AGENT).request()
    assert isinstance(request, TaskRequest), request
    assert request.timeouts.init == 100 + 10 + (2 + 4) + (2 + 3)
    assert request.runtime.healthcheck == HealthcheckSpec(
        command="ls", retries=1, timeout_s=2, interval_s=3, start_period_s=10, start_interval_s=4
    )


def test_a_null_where_no_task_sets_anything_stays(tmp_path: Path) -> None:
    template = {**IN_PLACE, "metadata": {"note": None}, "output_topic": None}
    request = mapped_task(tmp_path, {}, template).request()
    assert isinstance(request, TaskRequest), request
    assert request.metadata["note"] is None


def test_a_template_uploads_files_of_each_task(tmp_path: Path) -> None:
    upload = {"type": "upload_dir", "source": "{task}/tests", "target": "tests"}
    template = {**IN_PLACE, "runtime": {"prepare": [upload], "eval_prepare": [upload]}}
    for name in ("a", "b"):
        request = mapped_task(tmp_path / name, {}, template).request()
        assert isinstance(request, TaskRequest), request
        actions = [*request.runtime.prepare, *(request.runtime.eval_prepare or ())]
        assert [action.source for action in actions] == [str(tmp_path / name / "tests")] * 2
    with pytest.raises(InputError, match="leads out of"):
        mapped_task(tmp_path / "a", {}, {**AGENT, "runtime": {"prepare": [{**upload, "source": "{task}/../b"}]}})


def test_what_a_task_request_refuses_is_a_refusal(tmp_path: Path) -> None:
    refusal = mapped_task(tmp_path, {"agent": {"timeout_sec": 1e6}}, IN_PLACE).request()
    assert not isinstance(refusal, TaskRequest)
    assert (refusal.name, refusal.outcome, refusal.value) == ("timeouts.run", Outcome.REFUSED, 1e6)
    assert "TaskRequest" not in refusal.becomes
    refusal = mapped_task(tmp_path, {"metadata": {"x": "y" * 70_000}}, IN_PLACE).request()
    assert not isinstance(refusal, TaskRequest)
    assert (refusal.name, refusal.value) == ("metadata", None)


HOSTS = ["pypi.org", "2001:db8::1", "*.Example.org"]


@pytest.mark.parametrize(
    ("parts", "agent", "verifier", "hosts"),
    [
        ({}, "host", "host", None),
        ({"environment": "no-network"}, "proxy_only", "none", None),
        ({"environment": "allowlist"}, "allowlist", "allowlist", True),
        ({"environment": "public", "agent": "no-network"}, "proxy_only", "host", None),
        ({"environment": "no-network", "verifier": "public"}, "proxy_only", "host", None),
        ({"agent": "allowlist", "verifier": "no-network"}, "allowlist", "none", True),
        ({"agent": "allowlist", "verifier": "allowlist"}, "allowlist", "allowlist", True),
    ],
)
def test_network_policies(tmp_path: Path, parts: Any, agent: str, verifier: str, hosts: bool | None) -> None:
    config = {
        part: {"network_mode": mode, **({"allowed_hosts": HOSTS} if mode == "allowlist" else {})}
        for part, mode in parts.items()
    }
    runtime = mapped_task(tmp_path, config).body["runtime"]
    assert (runtime["network"], runtime["verifier_network"]) == (agent, verifier)
    assert runtime.get("allowed_hosts") == (sorted(["pypi.org", "[2001:db8::1]", "*.example.org"]) if hosts else None)


def test_two_lists_of_hosts_are_refused(tmp_path: Path) -> None:
    parts = {part: {"network_mode": "allowlist", "allowed_hosts": [f"{part}.org"]} for part in ("agent", "verifier")}
    assert [one.name for one in mapped_task(tmp_path, parts, IN_PLACE | {"evaluator": {}}).refusals] == [
        "verifier.allowed_hosts",
        "tests",
    ]


def test_a_list_of_hosts_in_the_template_takes_the_place_of_the_task_s(tmp_path: Path) -> None:
    parts = {part: {"network_mode": "allowlist", "allowed_hosts": [f"{part}.org"]} for part in ("agent", "verifier")}
    template = {**AGENT, "evaluator": {}, "runtime": {**IN_PLACE["runtime"], "allowed_hosts": ["mine.org"]}}
    found = mapped_task(tmp_path, parts, template)
    for part in parts:
        assert outcomes(found, f"{part}.network_mode") == [Outcome.CARRIED]
        assert outcomes(found, f"{part}.allowed_hosts") == [Outcome.REPLACED]
    assert found.body["runtime"]["allowed_hosts"] == ["mine.org"]


def test_a_policy_that_others_outrank_is_reported(tmp_path: Path) -> None:
    parts: dict[str, Any] = {part: {"network_mode": "no-network"} for part in ("agent", "verifier")}
    parts["environment"] = {"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}
    found = mapped_task(tmp_path, parts)
    for name in ("environment.network_mode", "environment.allowed_hosts"):
        assert outcomes(found, name) == [Outcome.NEUTRAL]


def test_an_allowlist_without_hosts_allows_nothing(tmp_path: Path) -> None:
    runtime = mapped_task(tmp_path, {"environment": {"network_mode": "allowlist"}}).body["runtime"]
    assert (runtime["network"], runtime["verifier_network"]) == ("proxy_only", "none")


def test_a_template_narrows_the_network(tmp_path: Path) -> None:
    config = {"environment": {"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}}
    template = {**IN_PLACE, "runtime": {**IN_PLACE["runtime"], "network": "proxy_only"}}
    request = mapped_task(tmp_path, config, template).request()
    assert isinstance(request, TaskRequest), request
    assert (request.runtime.network, request.runtime.allowed_hosts) == (Network.PROXY_ONLY, [])


@pytest.mark.parametrize(
    ("text", "variables", "value"),
    [
        ("plain", {}, "plain"),
        ("${A}", {"A": "1"}, "1"),
        ("${A:-2}", {"A": "1"}, "1"),
        ("${A:-2}", {}, "2"),
        ("${A:-}", {}, ""),
        ("${A}", {}, None),
        ("x${A}", {}, "x${A}"),
    ],
)
@pytest.mark.parametrize("part", ["environment", "verifier"])
def test_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, text: str, variables: dict[str, str], value: str | None
) -> None:
    """None of them comes from the environment of the import: a task would otherwise carry whatever secret it names."""
    monkeypatch.setenv("A", "secret")
    found = mapped_task(tmp_path, {part: {"env": {"V": text}}}, AGENT, **variables)
    assert "secret" not in json.dumps(found.body)
    if value is None:
        assert [one.becomes for one in found.refusals if one.name == f"{part}.env"] == [
            "V needs a value for ${A}; give it by --env A"
        ]
    else:
        assert at(found.body, "runtime.env" if part == "environment" else "evaluator.env") == {"V": value}


def test_an_image_makes_the_dockerfile_and_an_absolute_folder_no_problem(tmp_path: Path) -> None:
    config = {"environment": {"docker_image": "a:1", "workdir": "/app"}}
    found = mapped_task(tmp_path, config, {**AGENT, "runtime": {"import_path": "theirs:Docker"}})
    assert (found.body["runtime"]["image"], found.body["runtime"]["workdir"]) == ("a:1", "/app")
    assert outcomes(found, "environment/Dockerfile") == [Outcome.NEUTRAL]
    without = mapped_task(tmp_path / "b", {"environment": {"workdir": "/app"}}, IN_PLACE)
    assert outcomes(without, "environment.workdir") == [Outcome.REFUSED]


@given(st.text(), st.text())
def test_different_names_have_different_ids(one: str, other: str) -> None:
    assert re.fullmatch(ids.TASK_ID, task_id(one))
    assert (task_id(one) == task_id(other)) == (one == other)
    assert task_id(task_id(one)) == task_id(one)
