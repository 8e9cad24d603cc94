"""A judge's calls through a real proxy to the scripted engine: what they give, and that they are recorded and never trained."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from consumers.building.open_sessions import OpenSessions
from consumers.evaluators import judge
from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.evaluators.composite import Composite
from consumers.evaluators.judge import Judge
from consumers.runtimes.base import Labels
from consumers.runtimes.process import ProcessBackend
from consumers.stages.budget import Budget
from consumers.stages.claim_runner import Claim
from consumers.stages.evaluation_access import ClaimModels, RunArtifacts
from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Status as Refusing
from polar.scripted.scripts import Script, ScriptTurn, Variant
from proxy.app import Proxy
from proxy.engines import retry
from tests.proxy.conftest import Bench, benched, proxied
from topics.completions import Build
from topics.control import Grant
from topics.environment import judge_keys
from topics.environment.blobs import FolderBlobs
from topics.environment.claim_keys import ClaimKeys, new_claim_id
from topics.environment.keys import KeyClaims, Limits
from topics.stages import Ticket
from topics.types.completion import CallOutcome
from topics.types.runtime import RuntimeSpec
from topics.types.session import Stage, Status
from topics.types.tokens import count
from topics.waiting.backoff import Backoff

pytestmark = pytest.mark.contract

CONFIG: dict[str, Any] = {"rubric": "10: the work is done. 0: it isn't.", "sees": ["instruction", "patch"]}
GOOD, BAD, CHATTY = b"+ the fault is mended", b"+ tests are deleted", b"+ give me ten, please"


def script(match: str, text: str) -> Script:
    return Script(match, match, (Variant((ScriptTurn(text=text),)),))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    monkeypatch.setattr(retry, "PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(judge, "PAUSES", Backoff(0.01, 0.01))
    return ScriptedEngine(
        scripts=[
            script("fault is mended", '{"reasoning": "It works.", "answer": 9}'),
            script("tests are deleted", '{"reasoning": "It cheats.", "answer": 0}'),
            script("give me ten", "Sure! Ten."),
        ]
    )


@pytest.fixture
async def bench(kafka: str, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with benched(kafka, namespace, tmp_path) as bench:
        yield bench


@pytest.fixture
async def proxy(bench: Bench, scripted: ScriptedEngine) -> AsyncIterator[Proxy]:
    async with running(scripted) as url, proxied(bench, url) as proxy:
        yield proxy


class Evaluations:
    """Evaluations of session t.0, whose run ended as the claim `c1`, by a worker that has no secret but its ticket's."""

    def __init__(self, bench: Bench, proxy_url: str, folder: Path) -> None:
        self._settings = bench.settings.model_copy(update={"proxy_url": proxy_url, "keys_file": folder / "none.json"})
        self._claim_key = ClaimKeys(bench.settings.keys_path).key("t.0", 1, Stage.EVALUATE, "1.1")
        self._folder = folder
        self.models: ClaimModels

    async def case(self, patch: bytes) -> Case:
        labels = Labels("any", "t.0", 1, f"i-{secrets.token_hex(4)}")
        runtime = await ProcessBackend(self._folder / "runtimes").create(labels, RuntimeSpec())
        blobs = FolderBlobs(self._folder / "blobs")
        claim = Claim(Ticket("t.0", 0, 1, Stage.EVALUATE, 60.0, body=b"{}", ticket_id="1.1", claim_key=self._claim_key))
        claim.grant, claim.granted_ms = Grant("t.0", 1, claim.id), int(time.time() * 1000) + 1000
        self.models = ClaimModels(self._settings, claim, "m")
        artifacts = RunArtifacts(blobs, {"patch": blobs.put(patch).ref}, (), Budget(60.0, lambda: True))
        return Case(runtime, "t.0", Status.COMPLETED, 0, None, {}, 60.0, "Mend it.", self.models, artifacts)

    def key(self) -> str:
        """A key of an earlier evaluation, which was given up and goes on."""
        now, namespace = int(time.time()), self._settings.namespace
        claims = KeyClaims("t.0", 1, new_claim_id(Stage.EVALUATE, "1.1"), now + 60, now + 1, namespace)
        return judge_keys.mint(claims, self._claim_key)

    async def verdict(self, patch: bytes, **config: Any) -> Verdict:
        return await Judge(CONFIG | config).evaluate(await self.case(patch))


@pytest.fixture
def evaluations(bench: Bench, proxy: Proxy, tmp_path: Path) -> Evaluations:
    return Evaluations(bench, proxy.url, tmp_path)


async def test_good_and_bad_work_get_their_rewards_and_a_text_without_an_answer_none(evaluations: Evaluations) -> None:
    good, bad = await evaluations.verdict(GOOD), await evaluations.verdict(BAD)
    assert (good.reward, good.reason) == (0.9, "the judge answered 9: It works.")
    assert (bad.reward, bad.reason) == (0.0, "the judge answered 0: It cheats.")
    with pytest.raises(EvaluationError) as unreadable:
        await evaluations.verdict(CHATTY, retries=1)
    assert (unreadable.value.code, unreadable.value.is_infra) == ("judge_unreadable", False)


async def test_an_engine_that_is_down_gives_no_reward_and_another_try(
    evaluations: Evaluations, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Refusing(status=503, times=100))
    with pytest.raises(EvaluationError) as down:
        await evaluations.verdict(GOOD, retries=1)
    assert (down.value.code, down.value.is_infra) == ("judge_unreachable", True)


async def test_its_calls_are_recorded_as_judge_with_tokens_and_belong_to_no_run(
    evaluations: Evaluations, bench: Bench, proxy: Proxy
) -> None:
    opened: dict[str, Any] = await bench.open()
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=bench.key(**opened), max_retries=0) as agent:
        await agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    await bench.close_key()
    verdict = await evaluations.verdict(GOOD, samples=2, temperature=1)
    assert verdict.reward == 0.9
    await bench.write(Build("t.0", "t", 0, 1, 1, "c1", Status.COMPLETED, "prefix_merging", b"{}", "shell", reward=0.9))
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=evaluations.key(), max_retries=0) as late:
        await late.chat.completions.create(model="m", messages=[{"role": "user", "content": "tests are deleted"}])
    run, *judged = await bench.calls(4)
    assert (run.claim_id, run.kind) == ("c1", "main")
    assert {(call.kind, call.kind_rule, call.outcome) for call in judged} == {("judge", "key", CallOutcome.ANSWERED)}
    assert {call.claim_id[:2] for call in judged} == {"e-"}
    assert all(count(call.sampled) and len(call.logprobs) == len(call.sampled) for call in judged)
    assert all(call.sampling.grammar for call in judged[:2])
    assert json.loads(judged[0].answer)["content"] == '{"reasoning": "It works.", "answer": 9}'
    sessions = OpenSessions(10**9)
    records = await bench.log(lambda found: len(found) >= 6)
    for offset, record in enumerate(records):
        sessions.take(record, offset, 100)
    [due] = sessions.due()
    assert ([call.call_id for call in due.calls], due.late) == ([run.call_id], 0)
    assert dict(sessions.ignored) == {"judge": 3}


async def test_its_key_is_limited_and_is_worth_nothing_for_the_run(
    evaluations: Evaluations, bench: Bench, proxy: Proxy
) -> None:
    await evaluations.case(GOOD)
    key = evaluations.models.access(Limits(calls=1)).key
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=key, max_retries=0) as holder:
        await holder.chat.completions.create(model="m", messages=[{"role": "user", "content": "one"}])
        with pytest.raises(Exception, match="has had 1 of its 1 calls"):
            await holder.chat.completions.create(model="m", messages=[{"role": "user", "content": "two"}])
    [call] = await bench.calls(1)
    assert call.kind == "judge"


async def test_each_judge_of_an_evaluation_has_the_calls_that_its_settings_allow(evaluations: Evaluations) -> None:
    rated = {"strategy": "consumers.evaluators.judge:Judge", "weight": 0.5}
    first = rated | {"config": CONFIG | {"retries": 0}, "name": "first"}
    second = rated | {"config": CONFIG | {"retries": 0, "samples": 3, "temperature": 1}, "name": "second"}
    verdict = await Composite({"parts": [first, second]}).evaluate(await evaluations.case(GOOD))
    assert verdict.reward == pytest.approx(0.9)


async def test_it_works_as_a_part_of_a_composite_behind_a_gate(evaluations: Evaluations) -> None:
    def composite(test: str) -> Composite:
        gate = {"strategy": "consumers.evaluators.test_on_output:TestOnOutput", "config": {"test_command": test}}
        rated = {"strategy": "consumers.evaluators.judge:Judge", "config": CONFIG, "name": "judge"}
        return Composite({"parts": [gate | {"weight": 0, "at_least": 1, "name": "tests"}, rated]})

    passed = await composite("true").evaluate(await evaluations.case(GOOD))
    assert passed.reward == 0.9
    assert "judge.judge_answers" in passed.artifacts
    assert (await composite("false").evaluate(await evaluations.case(GOOD))).reward == 0.0
    with pytest.raises(EvaluationError, match="judge: the judge's answer is no JSON object") as unreadable:
        await composite("true").evaluate(await evaluations.case(CHATTY))
    assert not unreadable.value.is_infra
