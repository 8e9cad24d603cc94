"""`polar topics`: the topics of the contract, on the broker."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from polar import settings
from polar.cli.options import Data, Format, Output
from polar.cli.tables import show

app = typer.Typer(no_args_is_help=True, help="Create, list and describe the topics.")


class Document(StrEnum):
    """Forms of the contract."""

    ASYNCAPI = "asyncapi"
    JSON = "json"
    MARKDOWN = "markdown"


@app.command("apply")
def apply(
    pools: Annotated[
        list[str] | None, typer.Option("--pool", help="Pools whose stage queues are made, too; may be repeated.")
    ] = None,
    data: Data = None,
) -> None:
    """Create what is missing, and bring settings in line with the contract; twice changes nothing."""
    from topics import admin, catalogue

    queues = [topic for pool in pools or [catalogue.DEFAULT_POOL] for topic in catalogue.of_pool(pool)]
    found = settings.load(data)
    # A single broker, as the one of `polar up`, has few partitions.
    single = found.replication == 1
    applied = asyncio.run(admin.apply(found, [*catalogue.FIXED, *queues], embedded=single))
    show(["topic", "outcome"], [[one.topic, one.outcome] for one in applied])


@app.command("list")
def list_topics(output: Output = Format.TABLE, data: Data = None) -> None:
    """List the namespace's topics as the broker has them."""
    from topics import admin

    listed = asyncio.run(admin.listing(settings.load(data)))
    if output is Format.JSON:
        typer.echo(json.dumps(msgspec.to_builtins(listed), indent=2))
    else:
        show(
            ["topic", ">partitions", ">records", "cleanup"],
            [_cells(one.name, one.partitions, one.records, one.config) for one in listed],
        )


@app.command("docs")
def docs(
    form: Annotated[
        Document, typer.Option("--format", help="asyncapi: AsyncAPI 3.0 as YAML; json: the same; markdown: for people.")
    ] = Document.ASYNCAPI,
    data: Data = None,
) -> None:
    """Describe every topic and record; needs no Kafka."""
    import yaml

    from topics import asyncapi, markdown

    namespace = settings.load(data).namespace
    match form:
        case Document.ASYNCAPI:
            document = yaml.safe_dump(asyncapi.document(namespace), sort_keys=False, allow_unicode=True, width=120)
            typer.echo(document, nl=False)
        case Document.JSON:
            typer.echo(json.dumps(asyncapi.document(namespace), indent=2))
        case Document.MARKDOWN:
            typer.echo(markdown.page(namespace), nl=False)


def _cells(name: str, partitions: int, records: int, config: dict[str, str]) -> list[object]:
    kept = (
        f"delete after {_span(int(config['retention.ms']))}"
        if "retention.ms" in config
        else config.get("cleanup.policy")
    )
    return [name, partitions, records, kept]


def _span(ms: int) -> str:
    """`7 d`, or `1 h` for what is kept less than a day."""
    hours = ms / 3_600_000
    return f"{hours / 24:g} d" if hours >= 24 else f"{hours:g} h"
