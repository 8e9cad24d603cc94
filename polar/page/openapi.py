"""The page's API as an OpenAPI 3.1 document, made from its routes and the types of their answers, so that it can't deviate from them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from polar.page.access import OPEN

if TYPE_CHECKING:
    from polar.page.api import Route

Json = dict[str, Any]
NAMES = re.compile(r"\{(\w+)\}")
ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "field": {"type": "string"}},
        }
    },
}
STATUSES = {
    "400": "Invalid input",
    "401": "No token, or a wrong one",
    "403": "Another host or origin",
    "404": "Unknown",
    "409": "Something else is under way",
    "503": "Kafka or the lake is away",
}


def document(routes: list[Route]) -> Json:
    """The OpenAPI document of these routes."""
    types = [kind for route in routes for kind in (route.answer, route.body) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Polar's live page",
            "version": "1",
            "description": "Times are Unix milliseconds; null: unknown.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": ERROR},
            "securitySchemes": {"control": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, by_type: dict[int, Json]) -> Json:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in NAMES.findall(route.path)
    ]
    parameters += [
        {"name": query.name, "in": "query", "description": query.meaning, "schema": {"type": query.kind}}
        for query in route.queries
    ]
    content: Json = {"application/json": {}}
    if route.answer is not None:
        content = {"application/json": {"schema": by_type[id(route.answer)]}}
    elif route.path == "/api/stream":
        content = {"text/event-stream": {}}
    failed = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: Json = {
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer", "content": content},
            **{status: {"description": meaning} | failed for status, meaning in STATUSES.items()},
        },
        "security": [] if route.path in OPEN else [{"control": []}],
    }
    if route.method == "POST":
        schema = {"type": "object"} if route.body is None else by_type[id(route.body)]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation
