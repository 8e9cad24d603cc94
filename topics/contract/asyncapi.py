"""The contract as an AsyncAPI 3.0 document (https://www.asyncapi.com/docs/reference/specification/v3.0.0): every topic a channel.

Schemas are JSON Schema of the msgpack records; bytes, which JSON lacks, are strings with a content encoding. For clients in other
languages, and for tools that render such documents.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

from topics.contract import docstrings
from topics.contract.topic import Topic
from topics.types.task import TaskRequest

REF = "#/components/schemas/{name}"
MSGPACK = "application/msgpack"


def document(namespace: str) -> dict[str, Any]:
    """The document for the topics of a namespace, as plain values for JSON or YAML."""
    topics = docstrings.topics()
    records = list({record: None for topic in topics.values() for record in topic.records})
    _, schemas = msgspec.json.schema_components(records, ref_template=REF)
    for record in [*records, *docstrings.nested(records)]:
        schema = schemas[record.__name__]
        # An array has no names of fields, only their order.
        names = {name: at for at, name in enumerate(record.__struct_fields__)} if "prefixItems" in schema else None
        for field, note in docstrings.of_fields(record).items():
            parts, at = (schema["properties"], field) if names is None else (schema["prefixItems"], names[field])
            parts[at] = _noted(parts[at], note)
    task = TaskRequest.model_json_schema(ref_template=REF.replace("{name}", "{model}"))
    schemas |= {**task.pop("$defs", {}), "TaskRequest": task}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Polar's topics",
            "version": version("polar-rollouts"),
            "description": "Every event of a rollout system on Kafka. Records evolve by addition with defaults: skip what you don't know.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": MSGPACK,
        "channels": {name: _channel(f"{namespace}.{name}", topic) for name, topic in topics.items()},
        "operations": {
            f"{action}_{name}": {"action": action, "channel": {"$ref": f"#/channels/{name}"}, "summary": who}
            for name, topic in topics.items()
            for action, who in (("send", topic.writers), ("receive", topic.readers))
        },
        "components": {
            "schemas": schemas,
            "messages": {
                record.__name__: {
                    "name": record.__struct_config__.tag,
                    "contentType": MSGPACK,
                    "description": docstrings.of_class(record),
                    "payload": {"$ref": REF.format(name=record.__name__)},
                }
                for record in records
            }
            | {"TaskRequest": {"contentType": "application/json", "payload": {"$ref": REF.format(name="TaskRequest")}}},
        },
    }


def _channel(address: str, topic: Topic) -> dict[str, Any]:
    names = [record.__name__ for record in topic.records] or ["TaskRequest"] * (topic.name == "tasks")
    return {
        "address": address,
        "description": docstrings.of_topic(topic),
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {
            "kafka": {
                "topic": address,
                "partitions": topic.partitions,
                "topicConfiguration": _configuration(topic),
                "bindingVersion": "0.5.0",
            }
        },
    }


def _configuration(topic: Topic) -> dict[str, Any]:
    """The settings that AsyncAPI's Kafka binding names."""
    kept = {"cleanup.policy": ["compact" if topic.retention_ms is None else "delete"]}
    retention = {} if topic.retention_ms is None else {"retention.ms": topic.retention_ms}
    return kept | retention | {"max.message.bytes": topic.max_bytes}


def _noted(schema: dict[str, Any], note: str) -> dict[str, Any]:
    # AsyncAPI uses JSON Schema 7, where keys beside a `$ref` are ignored.
    return {"allOf": [schema], "description": note} if "$ref" in schema else schema | {"description": note}
