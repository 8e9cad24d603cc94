"""A real worker on a real Kafka, its coordinator played by the test: the claim protocol, and what each stage leaves behind."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumers.runtimes import proctree
from consumers.stages.worker import run_worker
from tests.consumers.stages.coordinating import ALL, PATIENCE_S, Coordinator, living, shell, ticket, working
from tests.consumers.test_fanout import letters
from tests.serving import serving
from tests.uploading import submitted
from tests.waiting import eventually
from topics import fleet, stages
from topics.environment import blob_store, registry
from topics.environment.keys import BACKSTOP_S, Limits, Signer
from topics.environment.redaction import PREFIX
from topics.environment.settings import Settings
from topics.events import Claimed, Evaluated, HandedBack, InitFinished, RunFinished, Stopped
from topics.fleet import FleetState
from topics.types.errors import Kind, NotReadyError
from topics.types.last_call import PATH
from topics.types.session import Stage, Status

INIT, RUN, EVALUATE = Stage.INIT, Stage.RUN, Stage.EVALUATE


def folders(settings: Settings) -> list[Path]:
    root = settings.data / "runtimes" / settings.namespace / "process"
    return sorted(root.iterdir()) if root.exists() else []


def blob(settings: Settings, reference: str) -> str:
    return blob_store.of(settings).get(reference).decode()


@pytest.fixture
async def worker(settings: Settings, coordinator: Coordinator) -> AsyncIterator[Coordinator]:
    """The coordinator of a running worker of all stages."""
    async with working(settings, ALL):
        yield coordinator


# --- a session's way


async def test_a_session_passes_init_run_and_evaluate(settings: Settings, worker: Coordinator) -> None:
    task = shell(
        "whole",
        "cat > said.txt; cat $POLAR_INSTRUCTION_FILE >> said.txt; echo done",
        runtime={"prepare": [{"type": "exec", "command": "echo made > made.txt"}]},
        evaluator={
            "strategy": "test_on_output",
            "config": {
                "test_command": '[ "$(cat made.txt said.txt)" = "made\nSay hi.Say hi." ] && echo "test_said: PASSED"',
                "expected_output_json": {"test_said": "PASSED"},
            },
        },
    )
    fact = await worker.evaluated(task)
    (ran,) = worker.of(RunFinished, "whole.0")
    await eventually(lambda: not folders(settings), PATIENCE_S)
    assert (fact.reward, fact.error) == (1.0, None)
    assert (ran.status, ran.exit_code, ran.error) == (Status.COMPLETED, 0, None)
    assert blob(settings, (ran.artifacts or {})["agent_log"]) == "done\n"
    assert blob(settings, (fact.artifacts or {})["evaluation_output"]) == "test_said: PASSED\n"


async def test_a_harness_finds_the_model_and_its_key_names_the_grant(settings: Settings, worker: Coordinator) -> None:
    task = shell(
        "access",
        "env > $HOME/../workspace/env.txt; cp env.txt seen.txt; echo key: $OPENAI_API_KEY",
        agent={"env": {"MINE": "1"}},
        sampling={"temperature": 0.5},
        limits={"tokens": 9000, "concurrent_calls": 2},
    )
    _, ran = await worker.run(task)
    (folder,) = folders(settings)
    env = (folder / "workspace" / "seen.txt").read_text()
    (claimed,) = (c for c in worker.of(Claimed, "access.0") if c.stage is RUN)
    seen = dict(line.partition("=")[::2] for line in env.splitlines())
    key = seen["OPENAI_API_KEY"]
    assert key == seen["ANTHROPIC_API_KEY"] == seen["GEMINI_API_KEY"]
    assert (seen["OPENAI_BASE_URL"], seen["ANTHROPIC_BASE_URL"]) == (f"{settings.proxy_url}/v1", settings.proxy_url)
    assert (seen["POLAR_SESSION_ID"], seen["POLAR_TASK_ID"], seen["MINE"]) == ("access.0", "access", "1")
    claims = Signer.from_file(settings.keys_path).check(key, time.time())
    assert (claims.session_id, claims.claim_id, claims.log_partition, claims.log_offset) == (
        "access.0",
        claimed.claim_id,
        3,
        17,
    )
    assert claims.sampling["temperature"] == 0.5
    assert claims.sampling["top_p"] == 1
    assert claims.limits == Limits(None, 9000, 2)
    assert abs(claims.expires_at - time.time() - 60 - BACKSTOP_S) < 30
    assert blob(settings, (ran.artifacts or {})["agent_log"]) == "key: [a session's key]\n"


async def test_a_harness_that_fails_is_evaluated_all_the_same(worker: Coordinator) -> None:
    fact = await worker.evaluated(shell("fails", "echo sorry; exit 3 | cat"))
    (ran,) = worker.of(RunFinished, "fails.0")
    assert (ran.status, ran.exit_code) == (Status.FAILED, 3)
    assert ran.error is not None
    assert (ran.error.kind, ran.error.code, ran.error.retryable) == (Kind.AGENT, "exit_code", False)
    assert "ends with:\nsorry" in ran.error.message
    assert fact.reward == 0.0


@pytest.mark.parametrize("command", ["exit 3", "exit 0", "sleep 60"])
async def test_a_run_that_a_failed_engine_ended_is_no_failure_of_the_agent(
    settings: Settings, coordinator: Coordinator, command: str
) -> None:
    told = {"failure": {"code": "unreachable", "message": "no connection to the engine"}}
    with serving(lambda _: (200, told)) as (url, asked):
        async with working(settings.model_copy(update={"proxy_url": url}), ALL):
            task = shell("cut-off", command)
            runtime = await coordinator.initialised(task)
            await coordinator.granted(ticket(task, RUN, runtime=runtime, budget_s=1.0))
            ran = await coordinator.fact(RunFinished, "cut-off.0")
            await eventually(lambda: not folders(settings), PATIENCE_S)
    assert ran.error is not None
    assert (ran.status, ran.error.kind, ran.error.code, ran.error.retryable) == (
        Status.FAILED,
        Kind.INFRA,
        "model_failed",
        True,
    )
    assert "unreachable" in ran.error.message
    (path, authorization, _) = asked[0]
    key = Signer.from_file(settings.keys_path).check((authorization or "").removeprefix("Bearer "), time.time())
    assert (path, key.session_id) == (PATH, "cut-off.0")


@pytest.fixture
def sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A preset that prints its sizes."""
    (tmp_path / "sized.toml").write_text(
        """
program = "sh"
arguments = ["-c", "echo {settings.context_window} {settings.max_tokens}"]
settings = {context_window = {default = 100000}, max_tokens = {default = 32000}}
"""
    )
    monkeypatch.setenv(registry.PRESETS, str(tmp_path))
    return "sized"


@pytest.mark.parametrize(("settings_of_task", "window"), [({}, 4096), ({"context_window": 8192}, 8192)])
async def test_a_harness_has_the_engines_length_and_a_larger_one_is_warned_of(
    settings: Settings, coordinator: Coordinator, sized: str, settings_of_task: dict[str, int], window: int
) -> None:
    task = shell("sized", "", agent={"harness": sized, "custom_shell": None, "settings": settings_of_task})
    with serving(lambda _: (200, {"max_model_len": 4096})) as (url, _):
        async with working(settings.model_copy(update={"proxy_url": url}), ALL):
            _, ran = await coordinator.run(task)
    assert blob(settings, (ran.artifacts or {})["agent_log"]) == f"{window} {window // 4}\n"
    if settings_of_task:
        assert ran.warning is not None
        assert "the engine of model 'default' takes 4096 tokens" in ran.warning
        assert "context_window is 8192" in ran.warning
    else:
        assert ran.warning is None


async def test_a_worker_logs_once_that_it_does_not_know_the_engines_length(
    settings: Settings, coordinator: Coordinator, sized: str
) -> None:
    task = shell("unknown", "", agent={"harness": sized, "custom_shell": None})
    with capture_logs() as logs, serving(lambda _: (200, {"max_model_len": None})) as (url, _):
        async with working(settings.model_copy(update={"proxy_url": url}), ALL):
            _, ran = await coordinator.run(task)
    assert blob(settings, (ran.artifacts or {})["agent_log"]) == "100000 32000\n"
    lines = [line for line in logs if line.get("action") == "context.unknown"]
    assert [(line["harness"], line["model"]) for line in lines] == [("sized", "default")]


async def test_a_harness_that_overruns_is_timed_out_and_dead(settings: Settings, worker: Coordinator) -> None:
    mark = uuid.uuid4().hex
    task = shell("slow", "echo begun; setsid sleep 60 & sleep 60", agent={"env": {"MARK": mark}})
    runtime = await worker.initialised(task)
    await worker.granted(ticket(task, RUN, runtime=runtime, budget_s=1.0))
    ran = await worker.fact(RunFinished, "slow.0")
    assert living(mark) == set()
    assert ran.status is Status.TIMED_OUT
    assert ran.error is not None
    assert (ran.error.kind, ran.error.code) == (Kind.BUDGET, "timeout")
    assert blob(settings, (ran.artifacts or {})["agent_log"]) == "begun\n"
    assert ran.duration_ms >= 1000


# --- artifacts


async def test_what_a_run_changed_is_kept_also_of_one_that_overran_and_no_key_is(
    settings: Settings, worker: Coordinator
) -> None:
    commit = "git init -q && git -c user.name=a -c user.email=a@a commit -q --allow-empty -m x"
    task = shell(
        "patched",
        "echo key: $OPENAI_API_KEY | tee made.txt; sleep 60",
        runtime={"prepare": [{"type": "exec", "command": f"echo found >found.txt; {commit}"}]},
        evaluator={"strategy": "test_on_output", "config": {"test_command": "cat made.txt"}},
    )
    runtime = await worker.initialised(task)
    await worker.granted(ticket(task, RUN, runtime=runtime, budget_s=1.0))
    ran = await worker.fact(RunFinished, "patched.0")
    await worker.granted(ticket(task, EVALUATE, runtime=runtime, status=ran.status, error=ran.error))
    judged = await worker.fact(Evaluated, "patched.0")
    assert ran.status is Status.TIMED_OUT
    kept = (ran.artifacts or {}) | (judged.artifacts or {})
    said = "key: [a session's key]\n"
    assert blob(settings, kept["agent_log"]) == blob(settings, kept["evaluation_output"]) == said
    lines = blob(settings, kept["patch"]).splitlines(keepends=True)
    assert (lines[0], lines[-1]) == ("diff --git a/made.txt b/made.txt\n", f"+{said}")


async def test_what_the_store_does_not_take_of_a_run_is_named_as_lost(settings: Settings, worker: Coordinator) -> None:
    folder = settings.data / "blobs"
    task = shell("lossy", f"rm -rf {folder}; touch {folder}")
    runtime = await worker.initialised(task)
    await worker.granted(ticket(task, RUN, runtime=runtime))
    ran = await worker.fact(RunFinished, "lossy.0")
    assert (ran.status, ran.artifacts, ran.lost_artifacts) == (Status.COMPLETED, None, ["agent_log"])


# --- claims


async def test_a_claim_is_asked_for_again_until_answered(worker: Coordinator) -> None:
    task = shell("patient", "true")
    runtime = await worker.initialised(task)
    await worker.release(ticket(task, RUN, runtime=runtime))
    first = await worker.fact(Claimed, "patient.0", 1)
    again = await worker.fact(Claimed, "patient.0", 2)
    assert again == first
    assert not worker.of(RunFinished, "patient.0"), "nothing starts before the Grant"
    await worker.grant(first)
    assert (await worker.fact(RunFinished, "patient.0")).claim_id == first.claim_id


async def test_a_refused_claim_touches_nothing(settings: Settings, worker: Coordinator) -> None:
    task = shell("refused", "touch ran.txt")
    runtime = await worker.initialised(task)
    await worker.release(ticket(task, RUN, runtime=runtime))
    claimed = await worker.fact(Claimed, "refused.0", 1)
    await eventually(lambda: claimed.claim_id in worker.held(), PATIENCE_S)
    await worker.revoke(claimed.claim_id, "refused.0", "taken")
    await eventually(lambda: claimed.claim_id not in worker.held(), PATIENCE_S)
    (folder,) = folders(settings)
    assert list((folder / "workspace").iterdir()) == []
    assert [f for f in worker.facts if isinstance(f, Stopped | RunFinished)] == []


async def test_revoking_a_run_kills_it_and_says_so(settings: Settings, worker: Coordinator) -> None:
    mark = uuid.uuid4().hex
    task = shell("revoked", "setsid sleep 60 & sleep 60", agent={"env": {"MARK": mark}})
    runtime = await worker.initialised(task)
    claimed = await worker.granted(ticket(task, RUN, runtime=runtime))
    await eventually(lambda: len(living(mark)) >= 2, PATIENCE_S)
    await worker.revoke(claimed.claim_id, "revoked.0")
    stopped = await worker.fact(Stopped, "revoked.0")
    assert living(mark) == set()
    assert stopped.claim_id == claimed.claim_id
    await eventually(lambda: claimed.claim_id not in worker.held(), PATIENCE_S)
    assert len(folders(settings)) == 1, "the session's runtime isn't this claim's to remove"


async def test_revoking_an_init_removes_its_runtime(settings: Settings, worker: Coordinator) -> None:
    mark = uuid.uuid4().hex
    prepare = [{"type": "exec", "command": "sleep 60", "env": {"MARK": mark}}]
    task = shell("unmade", "true", runtime={"prepare": prepare})
    claimed = await worker.granted(ticket(task, INIT))
    await eventually(lambda: living(mark), PATIENCE_S)
    await worker.revoke(claimed.claim_id, "unmade.0")
    await worker.fact(Stopped, "unmade.0")
    assert living(mark) == set()
    assert folders(settings) == []


async def test_a_full_worker_takes_no_ticket_and_takes_one_when_a_slot_is_free(
    settings: Settings, coordinator: Coordinator
) -> None:
    tasks = [shell(f"queue-{n}", "true") for n in range(3)]

    def asked() -> list[Claimed]:
        return list({f.claim_id: f for f in coordinator.facts if isinstance(f, Claimed)}.values())

    async with working(settings, [INIT], concurrency=2):
        for task in tasks:
            await coordinator.release(ticket(task, INIT))
        await eventually(lambda: len(asked()) == 2 and coordinator.beats[-1].stages[0].free == 0, PATIENCE_S)
        first = asked()[0]
        await coordinator.grant(first)
        await coordinator.fact(InitFinished, first.session_id)
        third = (await eventually(lambda: asked()[2:], PATIENCE_S))[0]
        await eventually(lambda: third.claim_id in coordinator.held(), PATIENCE_S)
    beats = [stage for beat in coordinator.beats for stage in beat.stages]
    assert all(0 <= stage.free == stage.slots - len(stage.claims) for stage in beats)


async def test_a_worker_that_stops_hands_back_what_it_holds(settings: Settings, coordinator: Coordinator) -> None:
    mark = uuid.uuid4().hex
    task = shell("handed", "setsid sleep 60 & sleep 60", agent={"env": {"MARK": mark}})
    slow = shell("asked", "true", runtime={"prepare": [{"type": "exec", "command": "sleep 60"}]})
    async with working(settings, ALL) as stop:
        runtime = await coordinator.initialised(task)
        claimed = await coordinator.granted(ticket(task, RUN, runtime=runtime))
        await coordinator.release(ticket(slow, INIT))
        asked = await coordinator.fact(Claimed, "asked.0")
        await eventually(lambda: len(living(mark)) >= 2 and asked.claim_id in coordinator.held(), PATIENCE_S)
        began = time.monotonic()
        stop.set()
        handed = await coordinator.fact(HandedBack, "handed.0")
        assert living(mark) == set()
    assert time.monotonic() - began < 10
    assert handed.claim_id == claimed.claim_id
    assert (await coordinator.fact(HandedBack, "asked.0")).claim_id == asked.claim_id, "it may be granted yet"
    last = await eventually(lambda: next((b for b in coordinator.beats if b.leaving), None), PATIENCE_S)
    assert last.leaving
    await eventually(lambda: coordinator.held() == set(), PATIENCE_S)
    assert [folder.name for folder in folders(settings)] == [runtime["id"]]


# --- a paused fleet


async def test_time_in_a_pause_is_not_charged_to_a_run_and_a_worker_that_starts_in_one_knows(
    settings: Settings, coordinator: Coordinator
) -> None:
    async def write(state: FleetState) -> None:
        await coordinator.log.send(fleet.TOPIC, state, key=fleet.key_of(state))

    async def run(task_id: str) -> Status:
        task = shell(task_id, "sleep 2.5")
        runtime = await coordinator.initialised(task)
        await coordinator.granted(ticket(task, RUN, runtime=runtime, budget_s=1.0))
        return (await coordinator.fact(RunFinished, f"{task_id}.0")).status

    await write(FleetState(1, paused=True))
    async with working(settings, ALL):
        assert await run("paused") is Status.COMPLETED
        assert coordinator.beats[-1].fleet_generation == 1
        await write(FleetState(2))
        await eventually(lambda: coordinator.beats[-1].fleet_generation == 2 or None, PATIENCE_S)
        assert await run("running") is Status.TIMED_OUT


# --- what goes wrong


UPLOAD = {"type": "upload_file", "source": "x", "target": "x"}
LOST = {"ref": f"blob:sha256/{'0' * 64}", "size": 2048}
"""Content that the worker's blob store lacks."""


def prepared(action: Mapping[str, object]) -> dict[str, object]:
    return {"runtime": {"prepare": [action]}}


@pytest.mark.parametrize(
    ("changes", "stage", "kind", "code", "message"),
    [
        (prepared({"type": "exec", "command": "echo no; exit 4"}), INIT, Kind.INFRA, "prepare_failed", "exit code 4"),
        (
            prepared(UPLOAD),
            INIT,
            Kind.INPUT,
            "bad_input",
            "submit` or polar.Client, which upload it and set `content` (got 'x')",
        ),
        (
            prepared(UPLOAD | {"content": LOST}),
            INIT,
            Kind.INFRA,
            "not_ready",
            f"runtime.prepare[0]: {LOST['ref']} can't be read",
        ),
        ({"agent": {"settings": {"speed": 3}}}, INIT, Kind.INPUT, "bad_input", "agent.settings.speed"),
        (
            {"agent": {"custom_shell": {"command": "true", "cwd": "no"}}},
            RUN,
            Kind.INPUT,
            "bad_input",
            "custom_shell.cwd",
        ),
        ({"runtime": {"env": {"PATH": "/no"}}}, RUN, Kind.INFRA, "not_started", "bash (PATH=/no): No such file"),
        ({"evaluator": {"strategy": "test_on_output"}}, EVALUATE, Kind.INPUT, "bad_input", "test_command"),
        ({"evaluator": {"strategy": "nowhere.to:Be"}}, EVALUATE, Kind.INPUT, "bad_input", "nowhere"),
    ],
)
async def test_a_stage_that_cannot_do_its_work_reports_why_and_removes_the_runtime(
    settings: Settings,
    worker: Coordinator,
    changes: dict[str, object],
    stage: Stage,
    kind: Kind,
    code: str,
    message: str,
) -> None:
    task = shell("wrong", "true", **changes)
    fact: InitFinished | RunFinished | Evaluated
    if stage is INIT:
        await worker.granted(ticket(task, INIT))
        fact = await worker.fact(InitFinished, "wrong.0")
    elif stage is RUN:
        _, fact = await worker.run(task)
        assert (fact.status, fact.exit_code) == (Status.FAILED, None)
    else:
        fact = await worker.evaluated(task)
        assert fact.reward is None
    await eventually(lambda: not folders(settings), PATIENCE_S)
    assert fact.error is not None
    assert (fact.error.stage, fact.error.kind, fact.error.code) == (stage.value, kind, code)
    assert message in fact.error.message
    assert fact.error.retryable is (kind is Kind.INFRA)


async def test_an_init_that_overruns_may_be_tried_again(settings: Settings, worker: Coordinator) -> None:
    task = shell("late", "true", runtime={"prepare": [{"type": "exec", "command": "sleep 60"}]})
    await worker.granted(ticket(task, INIT, budget_s=0.5))
    fact = await worker.fact(InitFinished, "late.0")
    await eventually(lambda: not folders(settings), PATIENCE_S)
    assert fact.error is not None
    assert (fact.error.code, fact.error.retryable) == ("timeout", True)


class Hostile:
    """An evaluator that raises, exits, judges with no number or no verdict, or never ends."""

    def __init__(self, config: dict[str, object]) -> None:
        self._how = config["how"]
        if self._how == "construct":
            raise ZeroDivisionError("judged by nothing")

    async def evaluate(self, case: object) -> object:
        from consumers.evaluators.base import Verdict

        match self._how:
            case "hang":
                await asyncio.sleep(3600)
            case "nan":
                return Verdict(float("nan"))
            case "text":
                return Verdict("1.0")  # type: ignore[arg-type]
            case "nothing":
                return None
            case "exit":
                raise SystemExit("judged by nothing")
            case "surrogates":
                raise ValueError("\ud800: judged by nothing")
        raise ZeroDivisionError("judged by nothing")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("raise", "evaluator_raised"),
        ("construct", "evaluator_raised"),
        ("exit", "evaluator_raised"),
        ("nan", "bad_reward"),
        ("text", "bad_reward"),
        ("nothing", "bad_reward"),
        ("surrogates", "evaluator_raised"),
        ("hang", "timeout"),
    ],
)
async def test_an_evaluator_that_cannot_judge_gives_no_reward(
    settings: Settings, worker: Coordinator, how: str, code: str
) -> None:
    strategy = f"{__name__}:Hostile"
    task = shell("judged", "true", evaluator={"strategy": strategy, "config": {"how": how}})
    runtime, _ = await worker.run(task)
    await worker.granted(ticket(task, EVALUATE, runtime=runtime, status=Status.COMPLETED, budget_s=1.5))
    fact = await worker.fact(Evaluated, "judged.0")
    assert fact.reward is None
    assert fact.error is not None
    assert (fact.error.kind, fact.error.code, fact.error.retryable) == (Kind.EVALUATION, code, False)
    artifacts = fact.artifacts or {}
    if code != "evaluator_raised":
        assert artifacts == {}
        return
    trace = blob(settings, artifacts["evaluator_traceback"])
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith(": judged by nothing\n")
    assert "in __init__\n" in trace if how == "construct" else "in evaluate\n" in trace


async def test_half_of_a_surrogate_pair_in_a_reason_costs_no_reward(worker: Coordinator) -> None:
    """It stands in a test's name, which JSON may hold and no log can."""
    event = '{"Action":"fail","Test":"half \\ud800"}'
    config = {
        "test_command": f"echo '{event}'; exit 1",
        "parser": "go",
        "expected_output_json": {"TestOther": "PASSED"},
        "exact": True,
    }
    fact = await worker.evaluated(shell("half", "true", evaluator={"strategy": "test_on_output", "config": config}))
    assert (fact.reward, fact.error) == (0.0, None)
    assert "half ?" in (fact.reason or "")


async def test_a_lost_reward_comes_with_its_reason_and_its_report(settings: Settings, worker: Coordinator) -> None:
    config = {"test_command": "echo 'a: FAILED'; sleep 60", "expected_output_json": {"a": "PASSED"}}
    task = shell("lost", "true", evaluator={"strategy": "test_on_output", "config": config})
    runtime, _ = await worker.run(task)
    await worker.granted(ticket(task, EVALUATE, runtime=runtime, status=Status.COMPLETED, budget_s=4.0))
    fact = await worker.fact(Evaluated, "lost.0")
    assert (fact.reward, fact.error) == (0.0, None), "a hang is the agent's failure, and no missing reward"
    assert fact.reason == "the test command was stopped. It didn't end within timeout_s = 2 s."
    assert fact.reason in blob(settings, (fact.artifacts or {})["evaluation_report"])


@pytest.mark.parametrize("backend", ["process", "cell"])
@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ({"type": "exec", "command": "bash run.sh"}, "runtime.eval_prepare[0]: 'bash run.sh' ended with exit code 127"),
        ({"type": "exec", "command": "true", "cwd": "tests"}, "runtime.eval_prepare[0].cwd: "),
        (
            {"type": "exec", "command": "sleep 60"},
            "preparing the evaluation took longer than timeouts.evaluate = 1.5 s",
        ),
    ],
    ids=["failed", "folder gone", "hang"],
)
async def test_what_the_run_did_to_the_preparation_of_its_evaluation_is_worth_0(
    worker: Coordinator, backend: str, action: dict[str, object], reason: str
) -> None:
    task = shell("prepared", "rm -rf tests", runtime={"backend": backend, "eval_prepare": [action]})
    runtime, ran = await worker.run(task)
    await worker.granted(ticket(task, EVALUATE, runtime=runtime, status=ran.status, budget_s=1.5))
    fact = await worker.fact(Evaluated, "prepared.0")
    assert (fact.reward, fact.error) == (0.0, None)
    assert (fact.reason or "").startswith(reason)


@pytest.mark.parametrize("eval_prepare", [None, [{"type": "exec", "command": "true"}]])
@pytest.mark.parametrize("protected", [[], False])
async def test_a_workdir_that_the_run_has_closed_is_worth_0(
    worker: Coordinator, eval_prepare: list[dict[str, str]] | None, protected: object
) -> None:
    task = shell(
        "closed",
        "echo >a; chmod 000 .",
        runtime={"backend": "cell", "workdir": "repo", "eval_prepare": eval_prepare},
        evaluator={"strategy": "test_on_output", "config": {"test_command": "false", "protected": protected}},
    )
    fact = await worker.evaluated(task)
    assert (fact.reward, fact.error) == (0.0, None)


async def test_an_evaluation_finds_protected_files_as_they_were_prepared(worker: Coordinator) -> None:
    config = {"test_command": '[ "$(cat given.txt new.txt)" = "prepared\nmade" ]', "protected": ["given.txt"]}
    task = shell(
        "protected",
        "echo changed >given.txt; echo made >new.txt",
        runtime={"prepare": [{"type": "exec", "command": "echo prepared >given.txt"}]},
        evaluator={"strategy": "test_on_output", "config": config},
    )
    fact = await worker.evaluated(task)
    assert (fact.reward, fact.reason) == (1.0, None)


COMPOSITE = "consumers.evaluators.composite:Composite"


async def test_the_parts_of_a_composite_keep_their_files_through_a_session(
    settings: Settings, worker: Coordinator
) -> None:
    command = 'cat given.txt >"$POLAR_REWARD_DIR/reward.txt"'
    script = {"command": command, "protected": ["given.txt"]}
    parts = [
        {"strategy": "session_completed", "at_least": 1, "weight": 0.5},
        {"strategy": "consumers.evaluators.script:Script", "name": "given", "config": script, "weight": 2},
        {"strategy": "test_on_output", "config": {"test_command": "echo made; exit 1"}},
    ]
    task = shell(
        "composed",
        "echo 1000 >given.txt",
        runtime={"prepare": [{"type": "exec", "command": "echo 0.25 >given.txt"}]},
        evaluator={"strategy": COMPOSITE, "config": {"parts": parts}},
    )
    fact = await worker.evaluated(task)
    assert (fact.reward, fact.error) == (1.0, None)
    assert (fact.reason or "").startswith("session_completed 1 × 0.5; given 0.25 × 2; test_on_output 0 × 1: ")
    assert blob(settings, (fact.artifacts or {})["test_on_output.evaluation_output"]) == "made\n"


async def test_a_part_of_a_composite_that_no_worker_has_is_no_verdict(worker: Coordinator) -> None:
    parts = [{"strategy": "nowhere:Nothing"}]
    task = shell("unknown", "true", evaluator={"strategy": COMPOSITE, "config": {"parts": parts}})
    fact = await worker.evaluated(task)
    assert fact.reward is None
    assert fact.error is not None
    assert fact.error.kind is Kind.INPUT
    assert "nowhere" in fact.error.message


@pytest.mark.parametrize(
    ("upload", "kind", "code", "message"),
    [
        (UPLOAD, Kind.INPUT, "bad_input", "runtime.eval_prepare[0].source: its content wasn't uploaded"),
        (UPLOAD | {"content": LOST}, Kind.INFRA, "not_ready", f"runtime.eval_prepare[0]: {LOST['ref']} can't be read"),
    ],
)
async def test_content_that_the_worker_lacks_is_no_verdict(
    worker: Coordinator, upload: dict[str, object], kind: Kind, code: str, message: str
) -> None:
    fact = await worker.evaluated(shell(f"lacking-{code}", "true", runtime={"eval_prepare": [upload]}))
    assert fact.reward is None
    assert fact.error is not None
    assert (fact.error.kind, fact.error.code) == (kind, code)
    assert message in fact.error.message


@pytest.mark.parametrize("backend", ["process", "landlock", "cell"])
async def test_a_session_has_what_was_uploaded_and_its_evaluation_has_its_tests(
    settings: Settings, worker: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "repo/run.sh": "#!/bin/sh\ncat src/data\n",
        "repo/src/data": "1\n",
        "tests/hidden": "2\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "repo/run.sh").chmod(0o755)
    task = shell(
        "uploaded",
        "./run.sh >seen; test ! -e tests",
        runtime={
            "backend": backend,
            "prepare": [{"type": "upload_dir", "source": "repo", "target": "."}],
            "eval_prepare": [{"type": "upload_dir", "source": "tests", "target": "tests"}],
        },
        evaluator={
            "strategy": "test_on_output",
            "config": {"test_command": "[ $(cat seen tests/hidden | tr -d '\n') = 12 ]"},
        },
    )
    task = submitted(task, blob_store.of(settings))
    for name in ("repo", "tests"):  # the worker never sees them
        (tmp_path / name).rename(tmp_path / f"no {name}")
    fact = await worker.evaluated(task)
    assert (fact.reward, fact.reason, fact.error) == (1.0, None, None)


async def test_a_runtime_that_is_gone_fails_the_attempt_not_the_worker(worker: Coordinator) -> None:
    task = shell("gone", "true")
    handle = {"backend": "process", "host": "elsewhere", "id": "i-0000"}
    await worker.granted(ticket(task, RUN, runtime=handle))
    ran = await worker.fact(RunFinished, "gone.0")
    assert ran.error is not None
    assert (ran.status, ran.error.code, ran.error.retryable) == (Status.FAILED, "runtime_gone", True)
    assert (await worker.run(shell("next", "true")))[1].status is Status.COMPLETED


async def test_what_is_no_ticket_is_buried_and_the_next_one_taken(settings: Settings, worker: Coordinator) -> None:
    name = stages.topic(INIT, "default").full_name(settings.namespace)
    await worker.partition(INIT)
    await worker.log.send_bytes(name, b"\xc1 no ticket", key=b"k")
    await worker.log.send_bytes(name, b"\x81\xa4type\xa6newest", key=b"k")
    await worker.initialised(shell("good", "true"))
    (buried,) = await letters(settings, 1)
    assert buried["body"] == "\ufffd no ticket"
    assert buried["source-topic"] == name
    assert "not a record" in buried["reason"]


async def test_no_key_is_on_a_command_line_or_in_a_log_line(
    worker: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = uuid.uuid4().hex
    task = shell("secret", "sleep 60", agent={"env": {"MARK": mark}})
    runtime = await worker.initialised(task)
    await worker.granted(ticket(task, RUN, runtime=runtime))
    await eventually(lambda: living(mark), PATIENCE_S)
    for pid in proctree.parents():
        with suppress(OSError):  # it ended meanwhile
            assert PREFIX.encode() not in Path("/proc", str(pid), "cmdline").read_bytes()
    said = capsys.readouterr()
    assert "worker started" in said.out + said.err
    assert PREFIX not in said.out + said.err


async def test_a_run_worker_that_could_mint_no_key_does_not_start(settings: Settings) -> None:
    lost = settings.model_copy(update={"proxy_url": None})
    with pytest.raises(NotReadyError, match="POLAR_PROXY_URL isn't set"):
        await run_worker(lost, [Stage.RUN], pool="default", concurrency=None, stop=asyncio.Event())
