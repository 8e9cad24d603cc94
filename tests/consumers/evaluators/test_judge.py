"""The evaluator `judge`: its settings, what it sends, and what comes of each answer. The server that answers is the test's own."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.evaluators import judge, judge_evidence
from consumers.evaluators.base import Case, EvaluationError, Verdict
from consumers.evaluators.judge import ANSWERS, Judge
from consumers.evaluators.judge_evidence import Part, cut, harmless, written
from consumers.evaluators.judge_scale import Answer, Scale, UnreadableAnswerError
from consumers.runtimes.base import ModelAccess, Runtime
from tests.serving import Requests, serving
from topics.environment.keys import Limits
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Status
from topics.waiting.backoff import Backoff

RUBRIC = {"rubric": "10: the work is done. 0: it isn't."}
Choice = dict[str, Any]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "PAUSES", Backoff(0.01, 0.01))


class Models:
    def __init__(self, url: str) -> None:
        self._url = url
        self.limits: list[Limits] = []

    def access(self, limits: Limits) -> ModelAccess:
        self.limits.append(limits)
        return ModelAccess(self._url, "the-key", "the-task's")


class Artifacts:
    def __init__(self, found: Mapping[str, bytes]) -> None:
        self._found = found

    async def read(self, name: str) -> bytes | None:
        return self._found.get(name)


def case_at(url: str, *, budget_s: float | None = 60.0, **artifacts: bytes) -> Case:
    return Case(
        cast(Runtime, None),  # no file is read
        "task.0",
        Status.COMPLETED,
        0,
        None,
        {},
        budget_s,
        instruction="Mend it.",
        models=Models(url),
        artifacts=Artifacts(artifacts),
    )


def said(answer: object, reasoning: object = "because", **more: Any) -> Choice:
    return text(json.dumps({"reasoning": reasoning, "answer": answer}), **more)


def text(content: str | None, finish_reason: str = "stop", **message: Any) -> Choice:
    return {"message": {"role": "assistant", "content": content} | message, "finish_reason": finish_reason}


def judged(*replies: list[Choice] | int, instruction: str = "Mend it.", **config: Any) -> tuple[Verdict, Requests]:
    """The verdict after these replies, one for each request: an answer's choices, or the status of an error."""
    left = list(replies)

    def answer(_: object) -> tuple[int, object]:
        reply = left.pop(0)
        return (reply, {"error": {"message": "no"}}) if isinstance(reply, int) else (200, {"choices": reply})

    with serving(answer) as (url, requests):
        case = replace(case_at(url, patch=b"+ mended"), instruction=instruction)
        verdict = asyncio.run(Judge(RUBRIC | config).evaluate(case))
    assert left == []
    return verdict, requests


def failed(*replies: list[Choice] | int, **config: Any) -> EvaluationError:
    with pytest.raises(EvaluationError) as error:
        judged(*replies, **config)
    return error.value


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "rubric"),
        ({"rubric": ""}, "rubric"),
        ({"rubic": "x"}, "rubic"),
        ({"scale": [10, 0]}, "scale"),
        ({"scale": [0, 1000]}, "scale"),
        ({"scale": [0.5, 1]}, "scale"),
        ({"choices": {"good": 1}}, "choices"),
        ({"choices": {"good": 2, "bad": 0}}, "choices"),
        ({"choices": {"good": 1, "bad": 0}, "scale": [0, 1]}, "scale"),
        ({"samples": 3}, "samples"),
        ({"samples": 0}, "samples"),
        ({"temperature": True}, "temperature"),
        ({"sees": ["everything"]}, "sees"),
        ({"sees": []}, "sees"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"retries": 11}, "retries"),
        ({"part_limit": 1}, "part_limit"),
    ],
)
def test_bad_settings_are_refused_by_name(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        Judge((RUBRIC if "rubric" not in config and config else {}) | config)
    assert error.value.field == f"evaluator.config.{field}"


def test_a_proxy_that_allows_no_further_call_is_asked_once_and_is_no_failure_of_the_machine() -> None:
    error = failed(403, retries=2)
    assert (error.code, error.is_infra) == ("judge_spent", False)
    assert "status 403" in str(error)


@pytest.mark.parametrize(("answer", "reward"), [(10, 1.0), (0, 0.0), (7, 0.7)])
def test_a_number_is_worth_its_place_on_the_scale(answer: int, reward: float) -> None:
    verdict, [(path, authorization, body)] = judged([said(answer, "it works")])
    assert (verdict.reward, verdict.reason) == (reward, f"the judge answered {answer}: it works")
    assert json.loads(verdict.artifacts[ANSWERS]) == [{"answer": answer, "reward": reward, "reasoning": "it works"}]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer the-key")
    assert (body["model"], body["temperature"], body["max_tokens"], body["n"]) == ("the-task's", 0.0, 2048, 1)
    assert body["response_format"]["json_schema"]["schema"]["properties"]["answer"] == {"enum": list(range(11))}
    system, user = (message["content"] for message in body["messages"])
    assert RUBRIC["rubric"] in system
    assert "Mend it." in user
    assert "a patch without new files of tools, such as virtual environments and caches ===\n+ mended" in user
    assert "what the agent's program printed: there is none" in user


def test_half_of_a_surrogate_pair_in_a_reasoning_costs_no_answer() -> None:
    verdict, _ = judged([said(7, "the agent wrote \ud800")])
    assert verdict.reward == 0.7
    assert json.loads(verdict.artifacts[ANSWERS])[0]["reasoning"] == "the agent wrote ?"


def test_choices_are_worth_what_the_task_says() -> None:
    choices = {"done": 1.0, "partly": 0.25, "not done": 0.0}
    verdict, [(_, _, body)] = judged([said("partly")], choices=choices, model="grader")
    assert verdict.reward == 0.25
    assert body["model"] == "grader"
    assert body["response_format"]["json_schema"]["schema"]["properties"]["answer"] == {"enum": list(choices)}


@pytest.mark.parametrize(("combine", "reward"), [("median", 0.9), ("mean", 0.6)])
def test_several_answers_become_one_reward(combine: str, reward: float) -> None:
    verdict, [(_, _, body)] = judged([said(9), said(0), said(9)], samples=3, temperature=1, combine=combine)
    assert verdict.reward == pytest.approx(reward)
    assert (verdict.reason or "").startswith(f"the judge answered 9, 0, 9 ({combine} of 3): ")
    assert body["n"] == 3


UNREADABLE = {
    "text": text("Ten out of ten!"),
    "a quotation": text('The agent wrote {"reasoning": "great", "answer": 10}.'),
    "nothing": text(None),
    "another object": text('{"answer": 10}'),
    "more than it": text('{"reasoning": "", "answer": 10, "reward": 1}'),
    "out of range": said(11),
    "a fraction": said(9.5),
    "a boolean": said(True),
    "a word": said("10"),
    "a list": said([10]),
    "NaN": text('{"reasoning": "", "answer": NaN}'),
    "no reasoning": said(10, None),
    "cut": said(10, finish_reason="length"),
    "a refusal": said(10, refusal="I can't help with that."),
    "no message": {"finish_reason": "stop"},
}


@pytest.mark.parametrize("choice", UNREADABLE.values(), ids=UNREADABLE)
def test_an_answer_that_can_t_be_read_is_no_reward(choice: Choice) -> None:
    error = failed([choice], retries=0)
    assert (error.code, error.is_infra) == ("judge_unreadable", False)
    [listed] = json.loads(error.artifacts[ANSWERS])
    assert listed.keys() == {"unreadable"}


def test_missing_answers_are_asked_for_again_within_the_retries() -> None:
    replies = ([said(8), text("?"), text("?")], [said(6), text("?")], [said(7)])
    verdict, requests = judged(*replies, samples=3, temperature=1)
    assert verdict.reward == 0.7
    assert [body["n"] for _, _, body in requests] == [3, 2, 1]
    assert failed([text("?")], [text("?")], [text("?")]).code == "judge_unreadable"


def test_an_engine_that_fails_is_asked_again_and_then_it_is_the_machine_s_failure() -> None:
    verdict, requests = judged(503, 429, [said(10)])
    assert (verdict.reward, len(requests)) == (1.0, 3)
    error = failed(502, 502, retries=1)
    assert (error.code, error.is_infra) == ("judge_unreachable", True)
    assert str(error) == "the judge didn't answer: status 502: no"


def test_a_refused_request_is_sent_with_shorter_texts_since_the_agent_decides_their_length() -> None:
    verdict, requests = judged(400, 413, [said(3)], part_limit=16_000, retries=0, instruction="x" * 20_000)
    assert verdict.reward == 0.3
    lengths = [len(body["messages"][1]["content"]) for _, _, body in requests]
    assert lengths[0] > 16_000 > 8000 > lengths[1] > 4000 > 2000 > lengths[2]
    error = failed(400, 400, 400, part_limit=16_000)
    assert (error.code, error.is_infra) == ("judge_refused", False)


def test_a_server_that_isn_t_there_or_says_nothing_costs_bounded_time() -> None:
    with serving(lambda _: (200, b"no JSON")) as (url, requests):
        with pytest.raises(EvaluationError) as garbage:
            asyncio.run(Judge(RUBRIC | {"retries": 1}).evaluate(case_at(url)))
        assert len(requests) == 2
    with pytest.raises(EvaluationError) as gone:
        asyncio.run(Judge(RUBRIC).evaluate(case_at(url)))
    with pytest.raises(EvaluationError, match="no time was left") as late:
        asyncio.run(Judge(RUBRIC).evaluate(case_at(url, budget_s=1.0)))
    assert {error.value.code for error in (garbage, gone, late)} == {"judge_unreachable"}


def test_a_hanging_request_ends_at_its_limit_and_holds_nobody_up() -> None:
    never = asyncio.Event()

    async def evaluated() -> None:
        async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await never.wait()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EvaluationError, match=r"nothing came within|timed out"):
            await Judge(RUBRIC | {"retries": 0, "timeout_s": 0.2}).evaluate(case_at(f"http://127.0.0.1:{port}"))
        never.set()
        server.close()

    asyncio.run(asyncio.wait_for(evaluated(), 20))


def test_a_key_allows_no_more_than_the_settings() -> None:
    with serving(lambda _: (200, {"choices": [said(1), said(2)]})) as (url, _):
        case = case_at(url)
        asyncio.run(Judge(RUBRIC | {"samples": 2, "temperature": 1, "retries": 1, "max_tokens": 100}).evaluate(case))
    assert cast(Models, case.models).limits == [Limits(calls=4, tokens=400, concurrent_calls=2)]


def test_without_a_worker_there_is_no_judge() -> None:
    with pytest.raises(NotReadyError):
        asyncio.run(Judge(RUBRIC).evaluate(Case(cast(Runtime, None), "t.0", Status.COMPLETED, 0, None, {})))


def test_a_long_text_is_cut_and_says_so() -> None:
    assert cut("abc", 3) == "abc"
    shortened = cut("a" * 400 + "b" * 600 + "c" * 200, 600)
    assert shortened == "a" * 400 + "\n[… 600 characters are left out here …]\n" + "c" * 200
    with serving(lambda _: (200, {"choices": [said(1)]})) as (url, requests):
        asyncio.run(Judge(RUBRIC | {"part_limit": 100}).evaluate(case_at(url, patch=b"x" * 10_000_000)))
    user = requests[0][2]["messages"][1]["content"]
    assert "[… 9999900 characters are left out here …]" in user
    assert len(user) < 1000


@given(st.text(max_size=300))
def test_no_text_of_the_agent_s_closes_its_place(text: str) -> None:
    message = written([Part("the patch", text), Part("the output", "fine")], 1000)
    number = re.search(r"marks ([0-9a-f]{16}) ", message)
    assert number is not None
    assert (
        len(re.findall(f"=== {number[1]} begins: ", message))
        == len(re.findall(f"=== {number[1]} ends ===", message))
        == 2
    )
    assert f"=== {number[1]} begins: the patch ===\n{harmless(text)}\n=== {number[1]} ends ===" in message


@pytest.mark.parametrize(
    "token", ["<|im_start|>", "<|eot_id|>", "<｜Assistant｜>", "</s>", "<end_of_turn>", "[INST]", "[/INST]", "</think>"]
)
def test_control_tokens_are_broken(token: str) -> None:
    assert token not in harmless(f"+ {token}system")
    assert harmless("a < b, <div>, [1], x<y>") == "a < b, <div>, [1], x<y>"


@given(st.integers(-50, 50), st.integers(1, 100), st.data())
def test_each_answer_of_a_range_is_read_and_worth_0_to_1(lowest: int, span: int, data: st.DataObject) -> None:
    scale = Scale.of_range(lowest, lowest + span)
    answer = data.draw(st.integers(lowest - 2, lowest + span + 2))
    message = said(answer)["message"]
    if lowest <= answer <= lowest + span:
        assert scale.read(message, "stop") == Answer(answer, (answer - lowest) / span, "because")
    else:
        with pytest.raises(UnreadableAnswerError):
            scale.read(message, "stop")


def test_every_word_of_sees_has_a_source() -> None:
    assert {"instruction", *judge_evidence.ARTIFACTS} == set(judge_evidence.TITLES)
