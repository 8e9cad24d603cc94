"""`polar show` against a real Kafka: what a coordinator, a proxy and a builder would have written is written here."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.show.reading import read_refused
from tests.consumers.token_tree.transcripts import build_record
from tests.polar.cli.commands import polar, rows, write
from tests.polar.show.recording import PLAN, TASK, Recording, a_session, row
from tests.serving import serving
from topics import completions, sessions, trajectories
from topics.completions import Emitted, Open, RefusedRequest
from topics.environment import blob_store
from topics.environment.settings import Settings
from topics.log import admin
from topics.log import kafka as clients
from topics.log.partition import partition_of_task
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status
from topics.types.trajectory import Trajectory

show = partial(polar, "show")
LOG = b"ran \x1b[31mwell\n\xff"


def write_session(
    settings: Settings, recording: Recording, trajectory: Trajectory | None, state: SessionState | None = None
) -> None:
    """All of session `t.0`, with a claim that was lost before it, and its sibling's records between."""
    others = [msgspec.structs.replace(call, session_id="t.1") for call in recording.calls]
    before = [("t.1", Open("t.1", 1, "claim")), ("t.0", Open("t.0", 1, "lost")), ("t.0", recording.calls[0])]
    log = [*before, ("t.0", Open("t.0", 1, "claim")), *(("t.0", call) for call in recording.calls)]
    log += [("t.1", call) for call in others]
    if trajectory is not None:
        log += [("t.0", build_record()), ("t.0", Emitted("t", "t.0")), ("t.0", recording.calls[0])]
    out = [] if trajectory is None else [("t.1", recording.build(session_id="t.1")), ("t.0", trajectory)]
    offsets = write(
        settings,
        *((completions.TOPIC, key, record) for key, record in log),
        *((trajectories.TOPIC, key, record) for key, record in out),
    )
    state = msgspec.structs.replace(state or row(), log_offset=offsets[len(before)])
    write(settings, *rows(TASK, state, SessionState("t.1", "t", 1, Phase.RUNNING, 0)))


def test_a_session_that_has_ended_is_told_whole(settings: Settings) -> None:
    ref = blob_store.of(settings).put(LOG).ref
    artifacts = {"agent_log": ref, "patch": f"blob:sha256/{'0' * 64}"}
    recording = a_session()
    write_session(settings, recording, recording.build(artifacts=artifacts), row(artifacts=artifacts))
    code, out, err = show("t.0", "--tokens")
    assert (code, err) == (0, "")
    assert out.startswith("t.0  COMPLETED  reward 1\n")
    assert "calls: 4 answered, 1 failed; 7 tokens sampled, 6 of them trainable in 2 traces" in out
    assert [out.count(f"\n{name}\n") for name in ("Calls", "Transcript", "Tokens", "Traces", "Artifacts")] == [1] * 5
    rows = {
        line.split()[0]: line.split() for line in out.split("\nArtifacts\n")[1].splitlines() if "polar show" in line
    }
    assert rows["agent_log"] == ["agent_log", str(len(LOG)), "B", *["polar", "show", "t.0", "--artifact", "agent_log"]]
    assert rows["patch"][1:5] == ["not", "in", "this", "store"]

    found = json.loads(show("t.0", "--format", "json")[1])
    assert [call["call_id"] for call in found["calls"]] == ["c-look", "c-title", "c-done", "c-edit", "c-failed"]
    assert [trace["trace_id"] for trace in found["traces"]] == ["t.0/c-done", "t.0/c-edit"]
    assert found["artifacts"][0] == {"name": "agent_log", "ref": ref, "size": len(LOG)}
    assert found["notes"] == []
    look, done = found["calls"][0], found["calls"][2]
    assert done["parent_id"] == done["record"]["base"] == "c-look"
    whole = look["record"]["prompt_rest"] + look["record"]["sampled"]
    prompt = whole[: done["record"]["shared_tokens"]] + done["record"]["prompt_rest"]
    assert prompt + done["record"]["sampled"] == found["traces"][0]["token_ids"]
    assert found["messages"][done["asked"]]["message"]["role"] == "tool"


def test_why_a_reward_is_what_it_is_is_told(settings: Settings) -> None:
    recording = a_session()
    reason = "1 of 2 tests differ: t::a is FAILED, not PASSED"
    write_session(settings, recording, recording.build(reward=0.0), row(reward=0.0, reward_reason=reason))
    _, out, _ = show("t.0")
    assert out.startswith("t.0  COMPLETED  reward 0\n")
    assert f"  the evaluator's reason:\n    {reason}\n" in out
    assert json.loads(show("t.0", "--format", "json")[1])["reward_reason"] == reason


def test_what_its_runtime_does_not_enforce_is_told(settings: Settings) -> None:
    recording = a_session()
    write_session(settings, recording, recording.build(), row(backend="landlock", unenforced=["udp", "session_key"]))
    assert "  runtime landlock, without: udp, session_key\n" in show("t.0")[1]
    found = json.loads(show("t.0", "--format", "json")[1])
    assert (found["backend"], found["unenforced"]) == ("landlock", ["udp", "session_key"])


def test_what_does_not_fit_its_engine_is_told(settings: Settings) -> None:
    recording = a_session()
    write_session(settings, recording, recording.build(), row(run_warning="200000 is more than 32768"))
    assert "\n  200000 is more than 32768\n" in show("t.0")[1]
    assert json.loads(show("t.0", "--format", "json")[1])["run_warning"] == "200000 is more than 32768"


def test_what_an_evaluator_raised_is_printed_with_its_traceback(settings: Settings) -> None:
    trace = "Traceback (most recent call last):\n" + "  File x\n" * 30 + "ZeroDivisionError: \x1b[31mby zero\n"
    artifacts = {"evaluator_traceback": blob_store.of(settings).put(trace.encode()).ref}
    of_run = SessionError("run", Kind.AGENT, "exit_code", "ended with 3")
    raised = SessionError("evaluate", Kind.EVALUATION, "evaluator_raised", "ZeroDivisionError: by zero")
    state = row(
        status=Status.FAILED,
        reward=None,
        error=of_run,
        evaluation_error=raised,
        reward_reason="evaluation/evaluator_raised: ZeroDivisionError: by zero",
        artifacts=artifacts,
    )
    recording = a_session()
    write_session(settings, recording, recording.build(status=Status.FAILED, reward=None, artifacts=artifacts), state)
    _, out, _ = show("t.0")
    assert out.count("ZeroDivisionError: by zero") == 1
    assert "  run agent/exit_code:\n    ended with 3\n  evaluate evaluation/evaluator_raised:\n" in out
    assert out.split("evaluator_traceback:\n")[1].splitlines()[0] == "    Traceback (most recent call last):"
    assert "    ZeroDivisionError: \\x1b[31mby zero\n" in out


def test_what_was_refused_of_a_session_without_calls_is_shown(settings: Settings) -> None:
    refused = RefusedRequest("t.0", 1, "claim", 1000, "POST", "/foo", 404, "not_found", "nothing is served", "curl/8")
    log = [Open("t.0", 1, "claim"), refused, build_record(), Emitted("t", "t.0")]
    offset, *_ = write(settings, *((completions.TOPIC, "t.0", record) for record in log))
    state = row(log_offset=offset)
    write(settings, *rows(TASK, state))
    _, out, _ = show("t.0")
    assert "the proxy refused 1 request\n" in out
    assert "POST /foo     404  nothing is served" in out
    [shown] = json.loads(show("t.0", "--format", "json")[1])["refused_requests"]
    assert (shown["path"], shown["status"], shown["client"], shown["requests"]) == ("/foo", 404, "curl/8", 1)
    assert asyncio.run(read_refused(settings, state)) == [refused]


def test_one_call_is_told_alone_by_number_or_id(settings: Settings) -> None:
    recording = a_session()
    write_session(settings, recording, recording.build())
    code, out, _ = show("t.0", "--call", "3")
    assert code == 0
    assert out.startswith("call 3  c-done  answered\n")
    assert "mend it" in out
    assert "file 50" in out
    assert "mended again" not in out
    assert show("t.0", "--call", "-done")[1] == out
    one = json.loads(show("t.0", "--call", "3", "--format", "json")[1])
    assert [message["role"] for message in one["messages"]] == ["system", "user", "assistant", "tool"]
    assert one["answer"] == {"role": "assistant", "content": "mended"}
    code, _, err = show("t.0", "--call", "9")
    assert code == 2
    assert "--call: no such call; it has calls 1 to 5 (`polar show t.0`) (got '9')" in err


def test_an_artifact_comes_byte_for_byte_or_it_is_said_where_it_may_be(settings: Settings) -> None:
    blobs = blob_store.of(settings)
    artifacts = {"agent_log": blobs.put(LOG).ref, "patch": f"blob:sha256/{'0' * 64}", "quiet": blobs.put(b"").ref}
    write_session(settings, a_session(), None, row(Phase.EVALUATING, artifacts=artifacts))
    result = CliRunner().invoke(app, ["show", "t.0", "--artifact", "agent_log"])
    assert (result.exit_code, result.stdout_bytes) == (0, LOG)
    assert show("t.0", "--artifact", "quiet") == (0, "", "polar: quiet is empty\n")
    code, out, err = show("t.0", "--artifact", "patch")
    assert (code, out) == (3, "")
    assert f"isn't in {settings.data / 'blobs'}; set POLAR_BLOBS" in err
    code, _, err = show("t.0", "--artifact", "nosuch")
    assert code == 2
    assert "--artifact: no such artifact; there are: agent_log, patch, quiet (got 'nosuch')" in err


def test_a_session_that_runs_is_told_as_far_as_it_has_come(settings: Settings) -> None:
    recording = a_session()
    write_session(
        settings, recording, None, row(Phase.RUNNING, status=None, reward=None, attempt=2, past_claims=["claim-before"])
    )
    code, out, _ = show("t.0", "--tokens")
    assert code == 0
    assert out.startswith("t.0  running  no reward\n")
    assert "it is running: this is what there is so far" in out
    assert "1 earlier attempt; their calls are in the lake" in out
    assert "mended again" in out
    assert "\nTraces\n  not out\n" in out
    found = json.loads(show("t.0", "--format", "json")[1])
    assert found["traces"] is None
    assert len(found["calls"]) == 5


def test_a_session_that_waits_has_nothing_yet(settings: Settings) -> None:
    write(settings, *rows(TASK, SessionState("t.0", "t", 0, Phase.QUEUED, since=0)))
    code, out, _ = show("t.0")
    assert code == 0
    assert out.startswith("t.0  queued  no reward\n")
    assert "calls: none; 0 tokens sampled" in out


def test_a_session_that_never_ran_is_told_from_its_trajectory(settings: Settings) -> None:
    """No run was granted, so that the row tells no offset: the trajectory is found by when the row was written."""
    none: Trajectory = Recording().build(status=Status.FAILED)
    write(settings, (trajectories.TOPIC, "t.0", none))
    write(settings, *rows(TASK, row(run_claim_id=None, status=Status.FAILED, reward=None)))
    out = show("t.0")[1]
    assert out.startswith("t.0  FAILED  no reward\n")
    assert "\nTraces\n  none\n" in out


def test_what_is_no_session_is_refused_and_what_there_is_said(settings: Settings) -> None:
    write_session(settings, a_session(), None, row(Phase.RUNNING))
    code, _, err = show("t")
    assert code == 2
    assert "SESSION: that is a task; its sessions: t.0 (running), t.1 (running) (got 't')" in err
    assert "no such sample; t has 0 to 1 (got 't.2')" in show("t.2")[2]
    code, _, err = show("u.0")
    assert code == 2
    assert "SESSION: no coordinator knows a task u; there are: t (`polar status`)" in err
    assert "expected a task id" in show("t.0.x")[2]


def test_a_task_that_was_forgotten_is_not_known(settings: Settings) -> None:
    write(settings, *rows(TASK, row()))
    name = sessions.TOPIC.full_name(settings.namespace)
    partition = partition_of_task("t", sessions.TOPIC.embedded_partitions)

    async def forget() -> None:
        producer = clients.producer(settings)
        await producer.start()
        for key in (b"session:t.0", b"task:t"):
            await (await producer.send(name, None, key=key, partition=partition))
        await clients.stop(producer, 5)

    asyncio.run(forget())
    code, _, err = show("t.0")
    assert code == 2
    assert "no coordinator knows a task t; there are: none; what was forgotten is in the lake (`polar sql`)" in err


def test_an_output_topic_of_the_tasks_own_is_where_its_trajectory_is_looked_for(settings: Settings) -> None:
    recording = a_session()
    plan = msgspec.structs.replace(PLAN, output="mine")
    log = (Open("t.0", 1, "claim"), *recording.calls, build_record(), Emitted("t", "t.0"))
    offset, *_ = write(settings, *((completions.TOPIC, "t.0", record) for record in log))
    write(settings, *rows(msgspec.structs.replace(TASK, plan=plan), row(log_offset=offset)))
    assert "its trajectory has left Kafka" in show("t.0")[1]
    mine = trajectories.topic("mine")
    asyncio.run(admin.apply(settings, [mine], embedded=True))
    write(settings, (mine, "t.0", recording.build()))
    assert "6 of them trainable in 2 traces" in show("t.0")[1]


def test_tokens_are_text_where_the_control_port_tells_it_and_ids_where_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recording = a_session()
    write_session(settings, recording, recording.build())
    token = tmp_path / "token"
    token.write_text("secret\n")
    monkeypatch.setenv("POLAR_CONTROL_TOKEN_FILE", str(token))

    def texts(body: dict[str, list[list[int]]]) -> tuple[int, object]:
        return 200, {"texts": [f"\x1b<{len(run)} tokens>" for run in body["token_ids"]]}

    with serving(texts) as (url, asked):
        monkeypatch.setenv("POLAR_CONTROL_URL", url)
        out = show("t.0", "--tokens")[1]
        found = json.loads(show("t.0", "--tokens", "--format", "json")[1])
    assert "⟦\\x1b<2 tokens>⟧" in out
    assert "\x1b" not in out
    assert {token for _, token, _ in asked} == {"Bearer secret"}
    for trace in found["traces"]:
        assert [run["text"] for run in trace["runs"]] == [
            f"\x1b<{run['end'] - run['start']} tokens>" for run in trace["runs"]
        ]
    refusal = {"error": {"code": "not_ready", "message": "the engine is starting"}}
    with serving(lambda _: (503, refusal)) as (url, _):
        monkeypatch.setenv("POLAR_CONTROL_URL", url)
        out = show("t.0", "--tokens")[1]
        assert f"their text isn't available: {url}/v1/detokenize answered 503: the engine is starting" in out
        found = json.loads(show("t.0", "--tokens", "--format", "json")[1])
        assert {run["text"] for trace in found["traces"] for run in trace["runs"]} == {None}
    code, out, _ = show("t.0", "--tokens")
    assert code == 0
    assert "/v1/detokenize doesn't answer as it should: " in out
