"""TaskRequests: what is taken, what is refused with which words, and the one spelling of a body."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.specimens import JSON
from topics import completions
from topics.environment import registry
from topics.types.agent import AgentSpec
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec, VerifierSpec
from topics.types.task import (
    INSTRUCTION_LIMIT,
    RETENTION_BUDGET_S,
    RUN_LIMIT_S,
    TRAINING_DEFAULTS,
    YOUNGER,
    SamplingSpec,
    TaskRequest,
    body_hash,
    parse,
)

BODY: dict[str, Any] = {
    "task_id": "fix-1",
    "instruction": "mend it",
    "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
}
NVIDIA: dict[str, Any] = {
    "task_id": "swe-7",
    "instruction": "Fix the bug.",
    "num_samples": 4,
    "timeout_seconds": 1800,
    "runtime": {
        "backend": "process",
        "workdir": "repo",
        "prepare": [
            {"type": "upload_dir", "source": "fixtures/repo", "target": "repo"},
            {"type": "exec", "command": "git init", "cwd": "repo", "env": {"A": "b"}},
        ],
        "env": {"LANG": "C"},
    },
    "agent": {"harness": "shell", "model_name": "policy", "custom_shell": {"command": "./agent.sh"}},
    "builder": {"strategy": "prefix_merging", "config": {}},
    "evaluator": {"strategy": "session_completed", "config": {}, "env": {}, "refresh_runtime": False},
    "callback_url": None,
    "metadata": {"split": "train", "weights": [1, 0.5, None, True]},
}


def body(**changes: Any) -> dict[str, Any]:
    return BODY | changes


def test_a_short_body_gets_our_defaults() -> None:
    task = parse(BODY)
    assert (task.num_samples, task.max_attempts, task.priority, task.mode) == (1, 3, 0, "train")
    assert (task.timeouts.init, task.run_budget_s, task.timeouts.evaluate) == (600, 3600, 600)
    assert (task.runtime.backend, task.runtime.pool) == (None, "default")
    assert (task.builder.strategy, task.evaluator.strategy) == ("prefix_merging", "session_completed")
    assert task.output is None


def test_a_body_of_nvidias_polar_is_taken() -> None:
    task = parse(NVIDIA)
    assert task.run_budget_s == 1800
    assert task.metadata == NVIDIA["metadata"]
    assert [action.type for action in task.runtime.prepare] == ["upload_dir", "exec"]


UPLOAD = {"type": "upload_file", "source": "a", "target": "b"}
CONTENT = {"ref": f"blob:sha256/{'0' * 64}", "size": 2048}


@pytest.mark.parametrize("name", ["prepare", "eval_prepare"])
def test_uploads_need_content_once_a_task_was_submitted(name: str) -> None:
    action = {"type": "exec", "command": "true"}
    body = NVIDIA | {"runtime": {name: [action, UPLOAD | {"content": CONTENT}, UPLOAD]}}
    with pytest.raises(InputError, match=rf"runtime\.{name}\[2\]\.source: its content wasn't uploaded.*`polar submit`"):
        parse(body).check_uploads()
    body["runtime"][name].pop()
    task = parse(body)
    task.check_uploads()
    assert parse(json.loads(task.canonical())).runtime == task.runtime


SERVED = {"harness": "claude_code"}
LOCAL_SERVER: dict[str, Any] = {"name": "x", "transport": "stdio", "command": "python3"}
WEB_SERVER: dict[str, Any] = {"name": "web", "url": "https://tools.example:8443/mcp"}


@pytest.mark.parametrize(
    "runtime",
    [
        {"network": "host"},
        {"backend": "process"},
        {"network": "allowlist", "allowed_hosts": ["*.example", "tools.example:8443"]},
    ],
)
def test_an_mcp_server_that_the_sandbox_reaches_is_taken(runtime: dict[str, Any]) -> None:
    task = parse(BODY | {"agent": SERVED | {"mcp_servers": [LOCAL_SERVER, WEB_SERVER]}, "runtime": runtime})
    assert [server.name for server in task.agent.mcp_servers] == ["x", "web"]
    assert parse(json.loads(task.canonical())) == task


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instructon": "typo"}, "instructon: no such field; do you mean instruction?"),
        ({"task_id": "no/slash", "num_sample": 2}, "num_sample: no such field; do you mean num_samples?"),
        (
            {"agent": {"harness": "shell", "custom_shell": {"command": "x", "shell": "zsh"}}},
            "agent.custom_shell.shell:",
        ),
        ({"task_id": "no/slash"}, "task_id: "),
        ({"task_id": ""}, "task_id: "),
        ({"task_id": "x" * 129}, "task_id: "),
        ({"num_samples": 0}, "num_samples: "),
        ({"num_samples": 1025}, "num_samples: "),
        ({"instruction": "ü" * (INSTRUCTION_LIMIT // 2 + 1)}, "instruction: 1048578 bytes; at most 1048576"),
        ({"agent": {"harness": "claude"}}, "agent.harness: no such harness; there are: "),
        ({"agent": {}}, "agent: give exactly one of harness and import_path"),
        ({"agent": {"harness": "shell"}}, "agent: harness 'shell' needs custom_shell"),
        (
            {"agent": {"harness": "shel", "custom_shell": {"command": "x"}}},
            "agent.harness: no such harness; there are: ",
        ),
        (
            {"agent": {"harness": "pi", "mcp_servers": [LOCAL_SERVER]}},
            "agent.mcp_servers.0: pi connects to no MCP servers; leave them out, or name a harness that does",
        ),
        (
            {"agent": {"harness": "mini_swe_agent", "mcp_servers": [LOCAL_SERVER]}},
            "agent.mcp_servers.0: mini_swe_agent connects to no MCP servers",
        ),
        (
            {"agent": {"harness": "shell", "custom_shell": {"command": "x"}, "mcp_servers": [LOCAL_SERVER]}},
            "agent.mcp_servers.0: shell connects to no MCP servers",
        ),
        (
            {"agent": {"harness": "codex", "mcp_servers": [WEB_SERVER]}, "runtime": {"network": "host"}},
            "agent.mcp_servers.0: codex connects to no server by sse; it can by: stdio, streamable-http",
        ),
        (
            {"agent": SERVED | {"mcp_servers": [{"name": "x"}]}},
            "agent.mcp_servers.0: url is needed where transport is 'sse'",
        ),
        (
            {"agent": SERVED | {"mcp_servers": [{"name": "x", "command": "y"}]}},
            "agent.mcp_servers.0: url is needed where transport is 'sse'; for a command, give transport: stdio",
        ),
        (
            {"agent": SERVED | {"mcp_servers": [LOCAL_SERVER | {"headers": {"A": "b"}}]}},
            "agent.mcp_servers.0: headers doesn't go with transport 'stdio'",
        ),
        ({"agent": SERVED | {"mcp_servers": [LOCAL_SERVER | {"name": "a b"}]}}, "agent.mcp_servers.0.name: "),
        ({"agent": SERVED | {"mcp_servers": [LOCAL_SERVER | {"cmd": "a"}]}}, "agent.mcp_servers.0.cmd: no such field"),
        (
            {"agent": SERVED | {"mcp_servers": [WEB_SERVER | {"url": "a.org"}]}},
            "agent.mcp_servers.0.url: must be an http",
        ),
        (
            {"agent": SERVED | {"mcp_servers": [WEB_SERVER | {"url": "http://me:secret@a"}]}},
            "agent.mcp_servers.0.url: must hold no user or password",
        ),
        (
            {"agent": SERVED | {"mcp_servers": [WEB_SERVER | {"headers": {"A": "b\nc"}}]}},
            "agent.mcp_servers.0.headers.A: ",
        ),
        (
            {"agent": SERVED | {"mcp_servers": [LOCAL_SERVER, LOCAL_SERVER]}},
            "agent: mcp_servers has 2 servers with the name 'x'",
        ),
        (
            {"agent": SERVED | {"mcp_servers": [WEB_SERVER]}},
            "task: agent.mcp_servers: web is at https://tools.example:8443/mcp, and with runtime.network 'proxy_only' nothing but the",
        ),
        (
            {
                "agent": SERVED | {"mcp_servers": [WEB_SERVER]},
                "runtime": {"network": "allowlist", "allowed_hosts": ["tools.example"]},
            },
            "task: agent.mcp_servers: web is at https://tools.example:8443/mcp; add tools.example:8443 to runtime.allowed_hosts",
        ),
        ({"runtime": {"backend": "vm"}}, "runtime.backend: no such runtime; there are: "),
        ({"runtime": {"backend": "process", "cpus": 2}}, "runtime: cpus=2.0 can't be kept"),
        ({"runtime": {"allow_internet": False}}, "runtime: allow_internet=False can't be kept"),
        ({"runtime": {"backend": "docker"}}, "runtime: image is needed where backend is 'docker'; name one"),
        (
            {"runtime": {"backend": "docker", "image": "i", "kwargs": {"a": 1}}},
            "runtime: kwargs={'a': 1} can't be kept",
        ),
        ({"runtime": {"prepare": [{"type": "exec"}]}}, "runtime.prepare.0: command is needed"),
        ({"runtime": {"prepare": [{"type": "upload_file", "source": "a"}]}}, "runtime.prepare.0: target is needed"),
        (
            {"runtime": {"prepare": [UPLOAD | {"source": "a/.."}]}},
            "runtime.prepare.0: source 'a/..' doesn't name a file",
        ),
        ({"runtime": {"prepare": [UPLOAD | {"source": "a\0"}]}}, "runtime.prepare.0.source: "),
        (
            {"runtime": {"prepare": [UPLOAD | {"content": {"ref": "/etc/passwd", "size": 1}}]}},
            "runtime.prepare.0.content.ref: ",
        ),
        (
            {"runtime": {"prepare": [UPLOAD | {"content": CONTENT | {"size": 2**31}}]}},
            "runtime.prepare.0.content.size: ",
        ),
        ({"runtime": {"pool": "Big"}}, "runtime.pool: "),
        (
            {"runtime": {"network": "allowlist", "allowed_hosts": ["pypi.org", "https://a.org"]}},
            "runtime.allowed_hosts.1: expected a port from 1 to 65535, got '//a.org'",
        ),
        ({"builder": {"strategy": "per_token"}}, "builder.strategy: no such builder; there are: "),
        ({"evaluator": {"strategy": "swe"}}, "evaluator.strategy: no such evaluator; there are: "),
        ({"evaluator": {"refresh_runtime": True}}, "evaluator.refresh_runtime: "),
        ({"evaluator": {"config": {"x": 1}}}, "evaluator.config.x: session_completed has no settings"),
        ({"evaluator": {"strategy": "test_on_output"}}, "evaluator.config.test_command: must be a command"),
        (
            {"evaluator": {"strategy": "test_on_output", "config": {"test_command": "t", "timeout": 1}}},
            "evaluator.config.timeout: no such setting; there are: test_command, ",
        ),
        (
            {"agent": {"harness": "pi", "settings": {"speed": 1}}},
            "agent.settings.speed: pi has no such setting; there are: api",
        ),
        ({"agent": {"harness": "pi", "settings": {"max_tokens": 0}}}, "agent.settings.max_tokens: "),
        (
            {"agent": {"harness": "shell", "custom_shell": {"command": "x"}, "settings": {"a": 1}}},
            "agent.settings.a: shell has no such setting; there are: none",
        ),
        ({"builder": {"config": {"rewards": "most"}}}, "builder.config.rewards: "),
        ({"callback_url": "ftp://x"}, "callback_url: must be an http or https URL"),
        ({"callback_url": "http://me:secret@x"}, "callback_url: must hold no user or password"),
        ({"early_stop": {"usable": 2}, "num_samples": 1}, "early_stop: usable=2 is more than num_samples=1"),
        ({"early_stop": {"usable": 0}}, "early_stop.usable: "),
        ({"metadata": {"user": 3}}, "metadata: user must be text"),
        ({"timeout_seconds": 60, "timeouts": {"run": 60}}, "task: timeout_seconds and timeouts.run say the same"),
        ({"timeouts": {"run": 86401}}, "timeouts.run: "),
        ({"limits": {"calls": 0}}, "limits.calls: Input should be greater than 0"),
        ({"limits": {"tokens": -1}}, "limits.tokens: Input should be greater than 0"),
        ({"limits": {"concurrent_calls": 0}}, "limits.concurrent_calls: Input should be greater than 0"),
        ({"limits": {"concurrent_calls": 4097}}, "limits.concurrent_calls: Input should be less than"),
        ({"limits": {"turns": 3}}, "limits.turns: no such field"),
        ({"timeouts": {"init": 0}}, "timeouts.init: "),
        ({"timeouts": {"init": float("inf")}}, "task: timeouts × max_attempts = inf s"),
        ({"timeouts": {"run": 86400}, "max_attempts": 4}, "task: timeouts × max_attempts = 350400 s"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p: "),
        ({"output_topic": "Eval!"}, "output_topic: "),
        ({"metadata": {"x": "\ud800"}}, "metadata: can't be kept as JSON"),
        ({"metadata": {"x": object()}}, "metadata: can't be kept as JSON"),
        ({"metadata": {"x": float("inf")}}, "metadata: can't be kept as JSON"),
        ({"sampling": {"repetition_penalty": float("inf")}}, "sampling: can't be kept as JSON"),
        ({"sampling": {"top_k": 2**31}}, "sampling.top_k: "),
        ({"sampling": {"max_tokens": 2**31}}, "sampling.max_tokens: "),
        ({"agent": {"harness": "shell", "custom_shell": {"command": "a\0"}}}, "agent.custom_shell.command: "),
        ({"agent": {"harness": "shell", "custom_shell": {"command": "é" * 65_000}}}, "agent.custom_shell.command: "),
        ({"agent": {"harness": "pi", "env": {"A": "\0"}}}, "agent.env.A: "),
        ({"agent": {"harness": "pi", "env": {"A": "x" * 130_000}}}, "agent.env.A: "),
        ({"agent": {"harness": "pi", "env": {"A=B": "x"}}}, "agent.env.A=B"),
        ({"agent": {"harness": "pi", "env": {"": "x"}}}, "agent.env."),
        ({"runtime": {"env": {"A": "\0"}}}, "runtime.env.A: "),
        ({"runtime": {"prepare": [{"type": "exec", "command": "a\0"}]}}, "runtime.prepare.0.command: "),
        *(
            ({"runtime": {"path": ["/opt/bin", path]}}, "runtime.path.1: must be the absolute path of one folder")
            for path in ("bin", "", "/a:/b", "/a\0")
        ),
        (
            {"runtime": {"path": ["/opt/bin"], "env": {"PATH": "/bin"}}},
            "runtime: path and env.PATH can't both be given; use path for folders before",
        ),
        ({"evaluator": {"env": {"A": "\0"}}}, "evaluator.env.A: "),
        ({"metadata": {"patch": "x" * 70_000}}, "metadata: at most 65536 bytes"),
        *(
            (
                {"agent": {"harness": "pi", "env": {name: "x"}}},
                f"agent: env.{name} is set for the harness by the run worker",
            )
            for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "POLAR_SESSION_ID")
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(body(**changes))
    assert str(refused.value).startswith(message)
    assert "(got " in str(refused.value)


@pytest.mark.parametrize("wrong", [None, [], "task", 7, {}])
def test_what_is_no_task_at_all_is_refused(wrong: object) -> None:
    with pytest.raises(InputError):
        parse(wrong)


def test_a_class_is_taken_by_its_path_without_importing_it() -> None:
    task = parse(body(agent={"import_path": "my_lab.agents:Agent", "settings": {"any": 1}}))
    assert task.agent.name == "my_lab.agents:Agent"
    strategy = {"strategy": "my_lab.parts:Part", "config": {"any": 1}}
    assert parse(body(evaluator=strategy, builder=strategy)).evaluator.config == {"any": 1}


PLUG_INS = """
from topics.types.errors import InputError

class Strict:
    def __init__(self, *settings, **config):
        raise InputError("strict.x", settings, "is refused")

class Raising:
    def __init__(self, *settings, **config):
        raise OSError("no such file on this machine")

class Exiting:
    def __init__(self, *settings, **config):
        raise SystemExit
"""


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package of another project, with plug-ins of three kinds that can't be constructed here, or not even imported."""
    (tmp_path / "my_parts.py").write_text(PLUG_INS)
    (tmp_path / "my_broken_parts.py").write_text("1 / 0")
    installed = tmp_path / "my_parts-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1\n")
    places = {"strict": "my_parts:Strict", "raising": "my_parts:Raising", "exiting": "my_parts:Exiting"}
    places |= {"absent": "no_such_module:Class", "broken": "my_broken_parts:Class"}
    points = "".join(f"{name} = {place}\n" for name, place in places.items())
    (installed / "entry_points.txt").write_text(
        "".join(f"[polar.{kind}]\n{points}" for kind in ("harness", "evaluator", "builder"))
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()
    sys.modules.pop("my_parts", None)


def naming(part: str, name: str) -> dict[str, Any]:
    return {"agent": {"harness": name}} if part == "agent" else {part: {"strategy": name}}


@pytest.mark.parametrize("part", ["agent", "evaluator", "builder"])
def test_a_plug_in_of_another_package_refuses_its_settings_itself(plug_ins: None, part: str) -> None:
    with pytest.raises(InputError, match=r"strict\.x: is refused"):
        parse(body(**naming(part, "strict")))


@pytest.mark.parametrize("part", ["agent", "evaluator", "builder"])
@pytest.mark.parametrize("name", ["raising", "exiting", "absent", "broken"])
def test_a_plug_in_that_does_not_work_here_is_left_to_the_workers(plug_ins: None, part: str, name: str) -> None:
    assert parse(body(**naming(part, name))).task_id == "fix-1"


def test_training_imposes_the_engines_own_distribution_unless_told() -> None:
    assert parse(BODY).effective_sampling() == TRAINING_DEFAULTS
    told = parse(body(sampling={"temperature": 0.7, "max_tokens": 99})).effective_sampling()
    assert told == TRAINING_DEFAULTS.model_copy(update={"temperature": 0.7, "max_tokens": 99})
    assert parse(body(mode="eval")).effective_sampling() == SamplingSpec()


def test_evaluations_and_named_outputs_have_topics_of_their_own() -> None:
    assert parse(body(mode="eval")).output == "eval"
    assert parse(body(mode="eval", output_topic="nightly")).output == "nightly"


def test_one_body_has_one_spelling_whatever_was_left_out_or_reordered() -> None:
    spelled_out = json.loads(parse(BODY).canonical())
    assert list(spelled_out) == sorted(spelled_out)
    backwards = dict(reversed(spelled_out.items()))
    assert parse(backwards).canonical() == parse(BODY).canonical()
    assert parse(body(num_samples=2)).canonical() != parse(BODY).canonical()


@settings(deadline=None)
@given(
    instruction=st.text(max_size=40),
    # `user` has a type of its own.
    metadata=st.dictionaries(st.text(max_size=5).filter(lambda name: name != "user"), JSON, max_size=3),
    samples=st.integers(1, 1024),
    run=st.floats(0.001, 3600),
)
def test_the_canonical_body_is_a_fixed_point(
    instruction: str, metadata: dict[str, Any], samples: int, run: float
) -> None:
    task = parse(body(instruction=instruction, metadata=metadata, num_samples=samples, timeout_seconds=run))
    canonical = task.canonical()
    again = parse(json.loads(canonical))
    assert again.canonical() == canonical
    assert body_hash(canonical) == body_hash(again.canonical())
    assert (again.instruction, again.metadata, again.run_budget_s) == (instruction, metadata, run)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"timeout_seconds": 60}, {"timeouts": {"run": 60.0}}),
        ({}, {"num_samples": 1, "timeouts": {"init": 600}}),
        ({}, {"evaluator": None}),
        ({}, {"runtime": None}),
        ({"sampling": {"temperature": 1}}, {"sampling": {"temperature": 1.0}}),
    ],
)
def test_bodies_with_equal_meaning_have_one_canonical_body(one: dict[str, Any], other: dict[str, Any]) -> None:
    canonical = parse(BODY | one).canonical()
    assert parse(BODY | other).canonical() == canonical
    assert parse(json.loads(canonical)).canonical() == canonical


def test_a_tasks_budgets_leave_half_of_what_its_calls_are_kept() -> None:
    assert completions.TOPIC.retention_ms == 2 * 1000 * RETENTION_BUDGET_S
    timeouts = {"init": 1, "run": RUN_LIMIT_S, "evaluate": RETENTION_BUDGET_S / 2 - RUN_LIMIT_S - 1}
    with pytest.raises(InputError, match="timeouts × max_attempts"):
        parse(body(timeouts=timeouts, max_attempts=2))
    parse(body(timeouts=timeouts | {"init": 0.5}, max_attempts=2))


OLD_HASH = "e0a8ef851c2a1e6857decd9e29e0da6f4f89c0556a864e4c33d6e573d0393052"
"""Of the task below, written before there were fields that are left out."""


def test_a_task_without_younger_fields_has_the_bytes_that_it_always_had() -> None:
    shell = {"harness": "shell", "custom_shell": {"command": "x"}}
    runtime = {"prepare": [{"type": "exec", "command": "y"}], "eval_prepare": []}
    task = parse({"task_id": "t", "instruction": "i", "agent": shell, "runtime": runtime})
    assert body_hash(task.canonical()) == OLD_HASH, (
        "a new field belongs in YOUNGER, or every task changes with an upgrade"
    )
    for part, names in YOUNGER.items():
        described: Any = {
            "": TaskRequest,
            "agent": AgentSpec,
            "runtime": RuntimeSpec,
            "runtime.verifier": VerifierSpec,
        }[part]
        assert json.loads(described.model_construct().model_dump_json(include=set(names))) == names


def test_a_run_is_part_of_a_task_and_a_task_without_one_is_written_as_before_there_were_runs() -> None:
    named = parse(body(run="grpo-2"))
    assert json.loads(named.canonical())["run"] == "grpo-2"
    assert parse(json.loads(named.canonical())) == named
    assert "run" not in json.loads(parse(BODY).canonical())
    assert parse(body(run=None)).canonical() == parse(BODY).canonical()


@pytest.mark.parametrize("name", ["", "a b", "a.b", "-a", "é", "a" * 129, 7])
def test_a_run_has_a_name_like_a_task(name: object) -> None:
    parse(body(run="A" + "b-_9" * 31))
    with pytest.raises(InputError) as raised:
        parse(body(run=name))
    assert raised.value.field == "run"


def test_a_task_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TaskRequest.model_validate(BODY).task_id = "other"


def with_verifier(**verifier: Any) -> dict[str, Any]:
    return body(runtime={"image": "run:1", "verifier": {"image": "judge:1"} | verifier})


def test_a_verifier_s_own_sandbox_takes_no_limits_or_variables_from_the_run() -> None:
    runtime = {
        "image": "run:1",
        "env": {"A": "1"},
        "memory_mb": 64,
        "pool": "p",
        "verifier": {"cpus": 2, "image": "judge:1"},
    }
    own = parse(body(runtime=runtime)).runtime.of_verifier
    assert (own.image, own.env, own.memory_mb, own.cpus, own.pool) == ("judge:1", {}, None, 2, "p")
    assert own.verifier is None


@pytest.mark.parametrize(("network", "after"), [(None, "proxy_only"), ("none", "none"), ("host", "host")])
def test_after_a_run_its_sandbox_reaches_no_more_than_the_run_did(network: str | None, after: str) -> None:
    runtime = {"image": "run:1", "network": network, "verifier_network": "host", "verifier": {"image": "judge:1"}}
    spec = parse(body(runtime=runtime)).runtime
    assert (spec.left_by_run.verifier_network.value, spec.of_verifier.verifier_network.value) == (after, "host")
    assert spec.left_by_run.verifier_sees.value == "everything"


def test_a_verifier_survives_the_canonical_body_and_a_task_without_one_has_no_field_for_it() -> None:
    task = parse(with_verifier(artifacts=["/out", {"path": "a/b"}, {"path": "c", "exclude": ["*.o"]}]))
    assert TaskRequest.model_validate_json(task.canonical()) == task
    assert b'"artifacts":["/out","a/b",{"exclude":["*.o"],"path":"c"}]' in task.canonical()
    assert b'verifier"' not in parse(BODY).canonical()
    assert b'"user"' not in task.canonical()
    of_root = parse(with_verifier(user="root"))
    assert b'"user":"root"' in of_root.canonical()
    assert TaskRequest.model_validate_json(of_root.canonical()) == of_root


@pytest.mark.parametrize(
    "path",
    ["", "/", "a/../b", "/tmp/x", "/home", "/home/agent/x", "/proc/self/mem", "/dev", "/run/x", "/sys", "a\0b"],
)
def test_an_artifact_is_a_path_that_an_evaluation_can_have(path: str) -> None:
    with pytest.raises(InputError, match="artifacts"):
        parse(with_verifier(artifacts=[path]))


@pytest.mark.parametrize("pattern", ["", "[ab]", "a\\b", "a\nb", "a\0b", "a" * 201])
def test_patterns_that_programs_read_differently_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match=r"artifacts\.0\.exclude\.0"):
        parse(with_verifier(artifacts=[{"path": "a", "exclude": [pattern]}]))


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ({"verifier": {"artifacts": ["/out"]}}, "verifier.image"),
        ({"verifier": {"image": "judge:1", "artifacts": ["/out"]}}, "runtime.image"),
        ({"image": "run:1", "verifier_sees": "everything", "verifier": {}}, "goes without verifier"),
        ({"image": "run:1", "collect": [{"command": "dump"}]}, r"^runtime\.collect: needs verifier, or verifier_sees"),
        ({"image": "run:1", "backend": "docker", "verifier": {}}, "can't be kept"),
        ({"backend": "process", "verifier": {}}, "can't be kept"),
    ],
)
def test_a_verifier_that_cannot_be_had_is_refused(runtime: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse(body(runtime=runtime))
