"""The tree of the `polar` command: each subcommand and its module, which is imported when the subcommand is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.main import get_group

import polar
from polar.cli import process
from polar.cli.exits import Commands

PLACES = {
    "up": "up:up",
    "doctor": "doctor:doctor",
    "submit": "submit:submit",
    "watch": "watch:watch",
    "status": "status:status",
    "list": "list_sessions:list_sessions",
    "why": "why:why",
    "show": "show.command:show",
    "logs": "logs:logs",
    "cancel": "cancel:cancel",
    "trajectories": "trajectories:trajectories",
    "rebuild": "rebuild:rebuild",
    "verify": "verify:verify",
    "sql": "sql:sql",
    "worker": "worker:worker",
    "proxy": "proxy:proxy",
    "rest": "rest:rest",
    "page": "page:page",
    "lake": "lake:app",
    "export": "export:app",
    "keys": "keys:app",
    "tasks": "tasks:app",
    "session": "session:app",
    "fleet": "fleet:app",
    "policy": "fleet:policy_app",
    "topics": "topics:app",
    "dead-letters": "dead_letters:app",
}
"""Module in `polar.cli`, and the function, or the Typer app of a group of subcommands."""


class Subcommands(Mapping[str, Any]):
    """The commands of `PLACES` by name. All modules together take a second to import, so each is imported at its first use."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            module, attribute = PLACES[name].split(":")
            place = getattr(import_module(f"polar.cli.{module}"), attribute)
            self._found[name] = _command(name, place)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


def _command(name: str, place: Any) -> Any:
    """Typer's command for a function, or for an app of several functions."""
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(place, typer.Typer):
        alone.add_typer(place, name=name)
    else:
        alone.command(name)(place)
    return get_group(alone).commands[name]


class Polar(Commands):
    """The command itself."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = cast(Any, Subcommands())  # read alone, once the command is made


app = typer.Typer(
    cls=Polar,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Token-faithful rollouts of real coding agents, on a durable log.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"polar {polar.__version__}")
        raise typer.Exit


@app.callback()
def before(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    # No docstring: typer would show it in place of the help above.
    process.log_warnings()
