"""`polar topics`: the topics of the contract, the rights on them, and the table of sessions made again."""

from __future__ import annotations

import asyncio
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from polar.cli import progress
from polar.cli.options import Data, Format, Output
from polar.cli.output import print_json, say, show
from topics.contract.topic import duration
from topics.environment import settings
from topics.types.errors import InputError

if TYPE_CHECKING:
    from topics.contract.acl import Right

PRINCIPAL = re.compile(r"[A-Za-z]+:[^'\\]+")

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and describe the topics; Kafka rights of each role (acl); remake the table of sessions (rebuild-table).",
)


class Document(StrEnum):
    ASYNCAPI = "asyncapi"
    JSON = "json"
    MARKDOWN = "markdown"


@app.command("apply")
def apply(
    pools: Annotated[
        list[str] | None, typer.Option("--pool", help="Also create the stage queues of this pool. Repeatable.")
    ] = None,
    data: Data = None,
) -> None:
    """Create missing topics and update topic settings to the contract. A second run changes nothing."""
    from topics.contract import catalogue
    from topics.log import admin

    queues = [topic for pool in pools or [catalogue.DEFAULT_POOL] for topic in catalogue.of_pool(pool)]
    found = settings.load(data)
    single = found.replication == 1  # a single broker, as in `polar up`, has few partitions
    applied = asyncio.run(admin.apply(found, [*catalogue.FIXED, *queues], embedded=single))
    show(["topic", "outcome"], [[one.topic, one.outcome] for one in applied])


@app.command("rebuild-table")
def rebuild_table(output: Output = Format.TABLE, data: Data = None) -> None:
    """Make the table of sessions again from the log, after polar.sessions was deleted, or restored from an older state.

    Only partitions whose table is older than their events are changed. What has a trajectory keeps it. Sessions without one start over;
    those that were opened for your own agent end FAILED.
    """
    from consumers.coordinator.table_rebuild import rebuild_table as rebuild
    from topics.log import logins

    partitions = 0, 0

    def progressed(done: int, total: int) -> None:
        nonlocal partitions
        partitions = done, total

    found = logins.of_roles(settings.load(data), [logins.REBUILD])
    report = asyncio.run(progress.reading(rebuild(found, progressed), lambda: partitions, "partitions"))
    if output is Format.JSON:
        print_json(msgspec.to_builtins(report))
    elif report.partitions == 0:
        say("nothing to rebuild: no partition's table is older than its events")
    else:
        show(
            [">partitions", ">tasks", ">ended", ">being built", ">start over"],
            [[report.partitions, report.tasks, report.ended, report.building, report.again]],
        )


class Rights(StrEnum):
    TABLE = "table"
    JSON = "json"
    COMMANDS = "commands"


@app.command("acl")
def list_rights(
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", help="Only this role. Repeatable. Default: all roles.", show_default=False),
    ] = None,
    principals: Annotated[
        list[str] | None,
        typer.Option(
            "--principal-of",
            metavar="ROLE=User:NAME",
            help="Kafka principal of a role, by default User:ROLE. Repeatable.",
        ),
    ] = None,
    form: Annotated[
        Rights, typer.Option("--format", help="commands: shell lines for Kafka's kafka-acls.sh.")
    ] = Rights.TABLE,
    is_applied: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Also give the principals exactly these rights. Needs a login that may alter the cluster; `polar up` has none. "
            "Other namespaces are left alone.",
        ),
    ] = False,
    data: Data = None,
) -> None:
    """List the Kafka rights that each role needs. Needs no Kafka without --apply."""
    from topics.contract import acl

    found = settings.load(data)
    wanted = [_known(role, "--role") for role in roles or acl.ROLES]
    named = dict(_principal(value) for value in principals or ())
    rights = [(role, right) for role in wanted for right in acl.rights(role, found.namespace)]
    if is_applied:
        _give(found, [(named.get(role, f"User:{role}"), right) for role, right in rights])
    match form:
        case Rights.TABLE:
            show(
                ["role", "kind", "name", "operations"],
                [[role, r.kind, r.name + "*" * r.prefixed, " ".join(r.operations)] for role, r in rights],
            )
        case Rights.JSON:
            documents = [
                {"role": role, "principal": named.get(role, f"User:{role}"), **msgspec.to_builtins(right)}
                for role, right in rights
            ]
            print_json(documents)
        case Rights.COMMANDS:
            lines = acl.commands(wanted, found.namespace, named, found.kafka or "BROKER:9092")
            say("\n".join(lines))


@app.command("list")
def list_topics(output: Output = Format.TABLE, data: Data = None) -> None:
    """List the namespace's topics on the broker."""
    from topics.log import admin

    listed = asyncio.run(admin.listing(settings.load(data)))
    if output is Format.JSON:
        print_json(msgspec.to_builtins(listed))
    else:
        show(
            ["topic", ">partitions", ">records", "cleanup"],
            [_cells(one.name, one.partitions, one.records, one.config) for one in listed],
        )


@app.command("docs")
def docs(
    form: Annotated[
        Document,
        typer.Option("--format", help="asyncapi: AsyncAPI 3.0 as YAML. json: the same as JSON. markdown: for people."),
    ] = Document.ASYNCAPI,
    data: Data = None,
) -> None:
    """Describe every topic and record. Needs no Kafka."""
    import yaml

    from topics.contract import asyncapi, markdown

    namespace = settings.load(data).namespace
    match form:
        case Document.ASYNCAPI:
            document = yaml.safe_dump(asyncapi.document(namespace), sort_keys=False, allow_unicode=True, width=120)
            typer.echo(document, nl=False)
        case Document.JSON:
            print_json(asyncapi.document(namespace))
        case Document.MARKDOWN:
            typer.echo(markdown.page(namespace), nl=False)


def _give(found: settings.Settings, rights: list[tuple[str, Right]]) -> None:
    """Raises NotReadyError."""
    from topics.log.rights import apply as give

    of_principals: dict[str, list[Right]] = {}
    for principal, right in rights:
        of_principals.setdefault(principal, []).append(right)
    asyncio.run(give(found, of_principals))


def _known(role: str, field: str) -> str:
    """Raises InputError."""
    from topics.contract import acl

    if role not in acl.ROLES:
        raise InputError(field, role, f"no such role; there are: {', '.join(acl.ROLES)}")
    return role


def _principal(value: str) -> tuple[str, str]:
    """Role and principal. Raises InputError."""
    role, _, principal = value.partition("=")
    if PRINCIPAL.fullmatch(principal) is None:
        raise InputError("--principal-of", value, "expected ROLE=User:NAME, without quotes in the name")
    return _known(role, "--principal-of"), principal


def _cells(name: str, partitions: int, records: int, config: dict[str, str]) -> list[object]:
    retention = config.get("retention.ms")
    kept = config.get("cleanup.policy") if retention is None else f"delete after {duration(int(retention))}"
    return [name, partitions, records, kept]
