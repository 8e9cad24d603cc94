"""The contract's documents say all of it, refer to nothing that isn't there, and docs/events.md is what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.topics.specimens import RECORDS, tag
from topics.contract import asyncapi, docstrings, markdown

ROOT = Path(__file__).parents[3]
DOCUMENT = asyncapi.document("polar")


def references(value: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    match value:
        case dict():
            if "$ref" in value:
                yield value["$ref"]
            for part in value.values():
                yield from references(part)
        case list():
            for part in value:
                yield from references(part)


def resolved(pointer: str) -> Any:
    found: Any = DOCUMENT
    for step in pointer.removeprefix("#/").split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 50
    for pointer in found:
        resolved(pointer)


def test_every_record_of_the_contract_is_a_message_of_its_topic() -> None:
    told = {
        (name, message["name"])
        for name, channel in DOCUMENT["channels"].items()
        for each in channel["messages"].values()
        if "name" in (message := resolved(each["$ref"]))
    }
    declared = {
        (name, record.__struct_config__.tag) for name, topic in docstrings.topics().items() for record in topic.records
    }
    assert told == declared


def test_topics_carry_the_namespace_and_the_settings_that_brokers_know() -> None:
    other = asyncapi.document("lab-7")
    assert other["channels"]["completions"]["address"] == "lab-7.completions"
    kafka = other["channels"]["completions"]["bindings"]["kafka"]
    assert kafka["topicConfiguration"] == {
        "cleanup.policy": ["delete"],
        "retention.ms": 7 * 24 * 3_600_000,
        "max.message.bytes": 32 * 1024 * 1024,
    }
    assert other["channels"]["sessions"]["bindings"]["kafka"]["topicConfiguration"]["cleanup.policy"] == ["compact"]


def test_what_a_field_means_is_told_where_its_docstring_says_it() -> None:
    completion = DOCUMENT["components"]["schemas"]["Completion"]["properties"]
    assert completion["received_at"]["description"] == "Unix ms on the proxy's clock."
    assert "The engine's" in completion["logprobs_mode"]["description"]


def test_the_document_survives_yaml() -> None:
    assert yaml.safe_load(yaml.safe_dump(DOCUMENT, sort_keys=False, allow_unicode=True)) == DOCUMENT


def test_every_record_stands_on_the_page() -> None:
    page = markdown.page("polar")
    for record in RECORDS:
        assert f"### {tag(record)}\n" in page


def test_the_page_in_docs_is_the_contract_as_it_is() -> None:
    assert (ROOT / "docs" / "events.md").read_text() == markdown.page("polar"), (
        "the contract has changed: polar topics docs --format markdown > docs/events.md"
    )
