"""The contract as docs/events.md: each topic's purpose, writers and readers, and every field of every record."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator

import msgspec

from topics.contract import docstrings
from topics.contract.topic import MIB, Topic, duration

HEAD = """\
# Events

Every topic of the contract, made by `polar topics docs --format markdown` from the modules under `topics/`; `polar topics docs` prints it
as AsyncAPI for tools. All topics but `{namespace}.tasks` carry msgpack maps whose `type` field names the record; token ids are int32 and
logprobs float32, little-endian, as byte strings. Records evolve by addition with defaults: skip unknown fields and types. Times are Unix
ms unless a field says otherwise.
"""


def page(namespace: str) -> str:
    """The page for the topics of a namespace."""
    lines = [HEAD.format(namespace=namespace)]
    topics = docstrings.topics()
    for name, topic in topics.items():
        lines += [f"## {namespace}.{name}", "", docstrings.of_topic(topic), "", *_facts(topic), ""]
        if name != docstrings.NAMED_OUTPUT:
            for record in topic.records:
                lines += _record(record, f"### {record.__struct_config__.tag}")
    lines += ["## Parts of records", ""]
    for part in docstrings.nested(record for topic in topics.values() for record in topic.records):
        lines += _record(part, f"### {part.__name__}")
    return "\n".join(lines).rstrip() + "\n"


def _facts(topic: Topic) -> Iterator[str]:
    kept = "compacted" if topic.retention_ms is None else f"kept {duration(topic.retention_ms)}"
    together = ", co-partitioned by task id" if topic.copartitioned else ""
    partitions = f"{topic.partitions} partitions ({topic.embedded_partitions} embedded){together}"
    yield f"- key: {topic.key}"
    yield f"- {partitions}, {kept}, records up to {topic.max_bytes // MIB} MiB"
    yield f"- written by: {topic.writers}"
    yield f"- read by: {topic.readers}"


def _record(record: type[msgspec.Struct], heading: str) -> Iterable[str]:
    notes = docstrings.of_fields(record)
    hints = typing.get_type_hints(record)
    yield from (heading, "", docstrings.of_class(record), "", "| field | type | meaning |", "|---|---|---|")
    for field in msgspec.structs.fields(record):
        words = docstrings.type_words(hints[field.name])
        optional = "" if field.required else ", may be missing"
        yield f"| `{field.encode_name}` | {words}{optional} | {notes.get(field.encode_name, '').replace('|', '&#124;')} |"
    yield ""
