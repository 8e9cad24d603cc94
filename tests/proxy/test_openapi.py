"""The OpenAPI document: valid, published as it is made, and whole: every route is in it, with its errors as they are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import pytest
import schemathesis
from jsonschema_rs import ValidationError

from proxy.app import Proxy
from proxy.dialects.base import Dialect, Serves, dialects
from proxy.errors import Refusal, RefusalError
from proxy.openapi import MATCHED, document, text

PUBLISHED = Path(__file__).parents[2] / "docs/openapi.json"
SERVED = dialects()
DOCUMENT: dict[str, Any] = document(SERVED)


def schema(name: str) -> dict[str, Any]:
    """One of the document's, with all that it refers to."""
    return {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}


def test_the_document_is_openapi_3_1() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()
    for one in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema"} | one)


def test_what_is_published_is_what_is_made() -> None:
    assert PUBLISHED.read_text() == text(SERVED), "python -m proxy.openapi > docs/openapi.json"


async def test_the_control_port_tells_it(proxy: Proxy, http: aiohttp.ClientSession) -> None:
    async with http.get(proxy.control_url + "/openapi.json") as response:
        assert response.content_type == "application/json"
        assert await response.json() == json.loads(PUBLISHED.read_text())


@pytest.mark.parametrize("dialect", SERVED, ids=lambda dialect: dialect.name)
def test_every_route_is_in_it(dialect: Dialect) -> None:
    for route in dialect.routes:
        paths = [MATCHED.sub(r"{\1}", route.path)]
        if "{method}" in paths[0]:
            words = ("countTokens",) if route.serves is Serves.COUNT else ("generateContent", "streamGenerateContent")
            paths = [paths[0].replace("{method}", word) for word in words]
        for path in paths:
            operation = DOCUMENT["paths"][path][route.method.lower()]
            assert dialect.name in operation["tags"]
            assert ("requestBody" in operation) == (route.serves in (Serves.CALL, Serves.COUNT))


def test_each_answer_has_its_media_type() -> None:
    call = DOCUMENT["paths"]["/v1/messages"]["post"]["responses"]
    count = DOCUMENT["paths"]["/v1/messages/count_tokens"]["post"]["responses"]
    assert set(call["200"]["content"]) == {"application/json", "text/event-stream"}
    assert set(count["200"]["content"]) == {"application/json"}
    assert set(DOCUMENT["paths"]["/v1/responses"]["get"]["responses"]) == {"426"}


@pytest.mark.parametrize("refusal", Refusal)
@pytest.mark.parametrize("dialect", SERVED, ids=lambda dialect: dialect.name)
def test_errors_are_as_the_document_has_them(dialect: Dialect, refusal: Refusal) -> None:
    valid = jsonschema_rs.validator_for(schema(f"{dialect.name}.Error"))
    for field, wait in ((None, None), ("messages[0]", 5)):
        valid.validate(json.loads(dialect.error(RefusalError(refusal, "No.", field=field, retry_after_s=wait))))
    with pytest.raises(ValidationError):
        valid.validate({"detail": "No."})


BODIES: dict[str, dict[str, Any]] = {
    "openai_chat.ChatCompletionRequest": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
    },
    "openai_responses.ResponsesRequest": {"input": [{"role": "user", "content": "hi"}], "stream": True},
    "anthropic_messages.MessagesRequest": {
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "ls", "input_schema": {"type": "object"}}],
    },
    "google_generate_content.GenerateContentRequest": {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "generationConfig": {"topK": 3, "thinkingConfig": {"includeThoughts": True}},
    },
}


@pytest.mark.parametrize("name", BODIES)
def test_requests_are_described_field_by_field(name: str) -> None:
    valid = jsonschema_rs.validator_for(schema(name))
    valid.validate(BODIES[name] | {"unknown": None})
    for field in BODIES[name].keys() - {"tool_choice"}:
        with pytest.raises(ValidationError):
            valid.validate(BODIES[name] | {field: {"no": "such"} if field != "generationConfig" else [1]})
    assert DOCUMENT["components"]["schemas"][name]["description"]
