"""The stub engine answers as vLLM does, with the tokens that were asked for, and prompts that grow by what was sampled."""

import json

import pytest

from benchmarks.conversation import FORMS, Conversation, Form, turns_of
from benchmarks.stub_engine import Asked, Texts
from proxy.engines.vllm_chat import from_wire
from topics.types.tokens import count, unpack_ids


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts()


@pytest.mark.parametrize("tokens", [1, 64, 512])
def test_an_answer_has_the_tokens_that_were_asked_for(texts: Texts, tokens: int) -> None:
    asked = Asked(max_completion_tokens=tokens, return_token_ids=True, logprobs=True)
    answer = from_wire(texts.body(asked, 300, 7), "polar-stub", "raw")
    assert count(answer.sampled_ids) == count(answer.logprobs) == answer.usage.sampled == tokens
    assert count(answer.prompt_ids) == 300


def test_a_grown_prompt_begins_with_the_prompt_and_the_answer_before_it(texts: Texts) -> None:
    asked = Asked(max_completion_tokens=64, return_token_ids=True, logprobs=True)
    first, second = (from_wire(texts.body(asked, prompt, 7), "polar-stub", "raw") for prompt in (300, 700))
    assert (first.prompt_ids + first.sampled_ids) == second.prompt_ids[: 4 * 364]
    other = from_wire(texts.body(asked, 300, 8), "polar-stub", "raw")
    assert unpack_ids(other.prompt_ids)[0] != unpack_ids(first.prompt_ids)[0]


def test_a_stream_says_what_a_body_says(texts: Texts) -> None:
    asked = Asked(max_tokens=64, stream=True)
    events = [json.loads(line[6:]) for line in texts.stream(asked, 300).split(b"\n\n") if line.startswith(b"data: {")]
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert said == json.loads(texts.body(asked, 300, 7))["choices"][0]["message"]["content"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_conversation_grows_to_its_size_and_has_a_number_of_its_own(form: Form) -> None:
    turns = turns_of(60_000, 64)
    conversation = Conversation(form, turns, 64, stream=False)
    request = conversation.request("http://127.0.0.1:1", "key", 42, turns - 1)
    head, body = request.split(b"\r\n\r\n", 1)
    assert 54_000 < len(body) < 66_000
    assert b"call 00000042, turn 000: " in body
    assert f"Content-Length: {len(body)}".encode() in head
