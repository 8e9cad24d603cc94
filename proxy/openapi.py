"""The model API as an OpenAPI 3.1 document, made from the dialects' routes, request types and errors, so that it can't deviate from them.

`python -m proxy.openapi` prints it, docs/openapi.json holds it, the control port serves it at /openapi.json. The providers' documents
describe answers; this one gives their media types, and the form of errors.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from inspect import getdoc, getmodule
from typing import Any

import msgspec

from proxy.dialects.base import Dialect, Route, Serves, dialects
from proxy.errors import Refusal, RefusalError
from proxy.session_key import KEY_HEADER

Json = dict[str, Any]

MATCHED = re.compile(r"\{(\w+)(?::([^{}]+))?\}")
"""aiohttp's `{name}` and `{name:regex}`; OpenAPI has only the first."""
WORDS = re.compile(r"\w+(\|\w+)*")
"""A regex that is a choice of words: each word makes a path of its own."""
SECURITY: dict[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "anthropic": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "google": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
    "google_query": {"type": "apiKey", "in": "query", "name": "key"},
    "polar": {"type": "apiKey", "in": "header", "name": KEY_HEADER},
}
"""A session's key is accepted in each of these places on every path."""
PREFIXED = {
    "url": "/s/{key}",
    "description": "The session's key before any path, for clients that can't send it otherwise.",
    "variables": {"key": {"default": "sk-polar-…"}},
}
SUMMARIES = {
    Serves.CALL: "Asks the model; the call is on the log before it is answered",
    Serves.COUNT: "Counts a request's prompt with the engine's tokenizer; nothing is sampled",
    Serves.MODELS: "The models that are served, or one of them",
    Serves.GREETING: "Says that somebody is there",
    Serves.UPGRADE: "Refuses a WebSocket, so that the client takes plain HTTP",
}
NOT_FOUND = "The names in the path are none that are served; the form is that of whose headers came"
ASKS_ENGINE = frozenset(Refusal) - {Refusal.NOT_FOUND, Refusal.UPGRADE}
REFUSALS: dict[Serves, frozenset[Refusal]] = {
    Serves.CALL: ASKS_ENGINE,
    Serves.COUNT: ASKS_ENGINE - {Refusal.SPENT, Refusal.CLOSED},
    Serves.MODELS: frozenset({Refusal.UNAUTHENTICATED, Refusal.UNAVAILABLE}),
    Serves.GREETING: frozenset(),
    Serves.UPGRADE: frozenset({Refusal.UPGRADE}),
}


def document(served: Sequence[Dialect]) -> Json:
    """The OpenAPI document of some dialects."""
    schemas: Json = {}
    sharing: dict[tuple[str, str], list[tuple[Dialect, Route]]] = {}
    for dialect in served:
        schemas |= _schemas(dialect)
        for route in dialect.routes:
            for path in _paths(route.path):
                sharing.setdefault((path, route.method.lower()), []).append((dialect, route))
    paths: dict[str, Json] = {}
    for (path, method), serving in sharing.items():
        paths.setdefault(MATCHED.sub(r"{\1}", path), {})[method] = _operation(path, serving)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Polar's model proxy",
            "version": "1",
            "description": "The providers' own APIs before one's own engines. Every call is captured with its tokens.",
        },
        "servers": [{"url": "/"}, PREFIXED],
        "security": [{name: []} for name in SECURITY],
        "tags": [{"name": dialect.name, "description": getdoc(getmodule(type(dialect))) or ""} for dialect in served],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"NotFound": {"description": NOT_FOUND} | _errors(served)},
            "securitySchemes": SECURITY,
        },
    }


def _schemas(dialect: Dialect) -> Json:
    """Schemas of a dialect's request and error, by their names in `_ref`."""
    _, found = msgspec.json.schema_components([dialect.request_type], ref_template=_ref(dialect, "{name}"))
    refusals = [
        RefusalError(Refusal.INVALID, "messages: expected at least one", field="messages"),
        RefusalError(Refusal.SLOW, ""),
    ]
    errors = [json.loads(dialect.error(refused)) for refused in refusals]
    return {f"{dialect.name}.{name}": schema for name, schema in found.items()} | {
        f"{dialect.name}.Error": _shape(errors) | {"examples": errors[:1]}
    }


def _ref(dialect: Dialect, name: str) -> str:
    return f"#/components/schemas/{dialect.name}.{name}"


def _shape(examples: Sequence[Any]) -> Json:
    """A schema that fits all examples: an object's properties are those of any example, required are those of all."""
    match examples[0]:
        case dict():
            names = list(dict.fromkeys(name for example in examples for name in example))
            properties = {name: _shape([example[name] for example in examples if name in example]) for name in names}
            required = [name for name in names if all(name in example for example in examples)]
            return {"type": "object", "properties": properties, "required": required}
        case list():
            return {"type": "array"}
        case int():
            return {"type": "integer"}
        case _:
            return {"type": ["string", "null"] if None in examples else "string"}


def _paths(pattern: str) -> list[str]:
    """A route's paths, in aiohttp's form: a name that is a choice of words makes one path for each word."""
    for matched in MATCHED.finditer(pattern):
        if WORDS.fullmatch(matched[2] or ""):
            heads = [pattern[: matched.start()] + word for word in matched[2].split("|")]
            return [head + tail for head in heads for tail in _paths(pattern[matched.end() :])]
    return [pattern]


def _operation(path: str, serving: Sequence[tuple[Dialect, Route]]) -> Json:
    """One method of a path, for all dialects that serve it."""
    serves = serving[0][1].serves
    of = [dialect for dialect, _ in serving]
    names = MATCHED.findall(path)
    operation: Json = {
        "tags": [dialect.name for dialect in of],
        "summary": SUMMARIES[serves],
        "parameters": [_in_path(*name) for name in names],
        "responses": _responses(serves, of),
    }
    if names:
        operation["responses"]["404"] = {"$ref": "#/components/responses/NotFound"}
    if len(of) > 1:
        operation["parameters"] += [_sign(dialect, name) for dialect in of for name in sorted(dialect.signs)]
    if serves in (Serves.CALL, Serves.COUNT):
        body = _any_of([_ref(dialect, dialect.request_type.__name__) for dialect in of])
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if serves in (Serves.GREETING, Serves.UPGRADE):
        operation["security"] = []
    return operation


def _in_path(name: str, pattern: str) -> Json:
    schema = {"type": "string", "minLength": 1} | ({"pattern": f"^{pattern}$"} if pattern else {})
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _sign(dialect: Dialect, name: str) -> Json:
    """A header that selects one of several dialects."""
    described = f"Asks for an answer in the form of {dialect.name}."
    return {"name": name, "in": "header", "description": described, "schema": {"type": "string"}}


def _responses(serves: Serves, of: Sequence[Dialect]) -> Json:
    codes: dict[str, list[str]] = {}
    for refusal in sorted(REFUSALS[serves], key=lambda refusal: refusal.value):
        codes.setdefault(str(refusal.status), []).append(refusal.code)
    refused = {
        status: {"description": f"The provider's error: {' or '.join(named)}"} | _errors(of)
        for status, named in codes.items()
    }
    match serves:
        case Serves.UPGRADE:
            return refused
        case Serves.GREETING:
            return {"200": {"description": "Nothing"}}
        case Serves.CALL:
            forms: Json = {"application/json": {}, "text/event-stream": {}}
        case _:
            forms = {"application/json": {}}
    return {"200": {"description": "The provider's answer", "content": forms}} | refused


def _errors(of: Sequence[Dialect]) -> Json:
    return {"content": {"application/json": {"schema": _any_of([_ref(dialect, "Error") for dialect in of])}}}


def _any_of(refs: Sequence[str]) -> Json:
    schemas = [{"$ref": ref} for ref in refs]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def text(served: Sequence[Dialect]) -> str:
    """The document as it is published."""
    return json.dumps(document(served), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text(dialects()))
