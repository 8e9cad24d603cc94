"""`polar keys`: the fleet's signing secrets, rotated while everything runs. Secrets are never printed, only their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polar.cli.options import Data, Format, Output
from polar.cli.output import note, print_json, show
from topics.environment import keys, settings
from topics.types.errors import NotReady

app = typer.Typer(no_args_is_help=True, help="The secrets that sign sessions' keys: list, add, use, retire.")
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="A key's id, as `polar keys list` shows it.")]


@app.command("list")
def list_keys(output: Output = Format.TABLE, data: Data = None) -> None:
    """List the ids of the signing secrets; the last one signs."""
    found = list(_read(_path(data)))
    uses = dict.fromkeys(found, "checks") | {found[-1]: "signs and checks"}
    if output is Format.JSON:
        print_json([{"key": key_id, "use": use} for key_id, use in uses.items()])
    else:
        show(["key", "use"], uses.items())


@app.command("add")
def add(data: Data = None) -> None:
    """Add a secret that checks but doesn't sign yet. Copy the file to every host, then `polar keys use` it."""
    path = _path(data)
    _read(path)
    key_id = keys.add_key(path)
    typer.echo(key_id)
    note(f"{key_id} checks; once every host has the file: polar keys use {key_id}")


@app.command("use")
def use(key_id: KeyId, data: Data = None) -> None:
    """Sign with this secret from now on; the others still check."""
    path = _path(data)
    _read(path)
    keys.use_key(path, key_id)
    typer.echo(f"{key_id} signs")


@app.command("retire")
def retire(key_id: KeyId, data: Data = None) -> None:
    """Forget a secret. Sessions whose key it signed are refused from then on."""
    path = _path(data)
    _read(path)
    keys.retire_key(path, key_id)
    typer.echo(f"{key_id} is forgotten")


def _path(data: Path | None) -> Path:
    return settings.load(data).keys_path


def _read(path: Path) -> dict[str, str]:
    """Raises NotReady where there is no keys file, or none that can be read."""
    try:
        return keys.read_keys_file(path)
    except (OSError, ValueError) as error:
        raise NotReady(f"no keys file: {error}; `polar up` makes one, or set POLAR_KEYS_FILE") from None
