"""What an SGLang server can do is read from its answers, and each thing that it lacks has its way out. Answers in SGLang's wire form."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.engines import probe
from proxy.engines.connection import UnreachableError
from proxy.engines.sglang_capabilities import MODE, SglangCapabilities, detect
from tests.proxy.engines.recorded import (
    LOGPROBS,
    NOT_FOUND,
    SGLANG,
    CannedAnswer,
    answering,
    likeliest,
    processed_chat,
    sglang_chat,
)
from topics.environment.settings import EngineSettings
from topics.types.errors import NotReadyError


async def asked(told: dict[str, CannedAnswer]) -> SglangCapabilities:
    with answering(told) as url:
        return await detect(f"{url}/v1", "tiny")


def missing(found: SglangCapabilities) -> list[tuple[str, bool]]:
    return [(feature.name, feature.is_fatal) for feature in found.missing_features()]


async def test_a_whole_server_lacks_nothing() -> None:
    found = await asked(SGLANG)
    assert found == SglangCapabilities("0.5.13", 8192, "processed", "qwen25", True, "default")
    assert missing(found) == []
    assert found.summary == (
        "SGLang 0.5.13, 8192 tokens of context, processed logprobs, tool calls (qwen25), prompts by ids, weights 'default'"
    )


async def test_an_older_server_has_the_same_routes_by_older_names() -> None:
    old = {path.replace("/", "/get_", 1) if path.endswith("_info") else path: told for path, told in SGLANG.items()}
    assert set(old) >= {"/get_server_info", "/get_model_info"}
    assert await asked(old) == await asked(SGLANG)


def other_prompt(request: dict[str, Any]) -> tuple[int, Any]:
    """Ignores the ids of a request, and says so."""
    return sglang_chat({name: value for name, value in request.items() if name != "input_ids"})


@pytest.mark.parametrize(
    ("chat", "reads_ids"),
    [
        (sglang_chat, True),
        (other_prompt, False),
        (processed_chat, False),
        (NOT_FOUND, False),
        ((400, {"message": "input_ids: unknown field"}), False),
        ((503, {"message": "busy"}), None),
    ],
)
async def test_only_a_prompt_that_comes_back_as_it_was_sent_is_one_by_ids(
    chat: CannedAnswer, reads_ids: bool | None
) -> None:
    found = await asked({**SGLANG, "/v1/chat/completions": chat})
    assert found.reads_ids is reads_ids
    assert (("prompts by ids", True) in missing(found)) == (reads_ids is False)
    assert (("prompts by ids", False) in missing(found)) == (reads_ids is None)


async def test_what_a_server_lacks_is_told_with_the_way_out() -> None:
    bare = {path: told for path, told in SGLANG.items() if not path.endswith("_info")}
    found = await asked({**bare, "/v1/chat/completions": likeliest(LOGPROBS)})
    assert missing(found) == [("prompts by ids", True), ("logprobs", False), ("tool calls", False), ("versions", False)]
    remedies = " ".join(feature.remedy for feature in found.missing_features())
    for way_out in ("SGLang 0.5.13", "SGLANG_RETURN_ORIGINAL_LOGPROB", "--tool-call-parser", "weight_version"):
        assert way_out in remedies


async def test_nobody_there_is_not_a_server_that_can_do_nothing() -> None:
    with pytest.raises(UnreachableError):
        await detect("http://127.0.0.1:9", "tiny")


def test_a_proxy_starts_in_front_of_a_server_that_reads_ids_and_of_no_other() -> None:
    with answering(SGLANG) as url:
        engines = {"s": EngineSettings(urls=(url,), model="tiny", mode=MODE)}
        assert probe.with_detected(engines, print)["s"].logprobs_mode == "processed"
    with answering({**SGLANG, "/v1/chat/completions": other_prompt}) as url:
        engines = {"s": EngineSettings(urls=(url,), model="tiny", mode=MODE)}
        with pytest.raises(
            NotReadyError, match=r"can't be used: the server ignores input_ids, .*: use SGLang 0\.5\.13"
        ):
            probe.with_detected(engines, print)
