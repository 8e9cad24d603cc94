"""`polar keys` rotates the fleet's signing secrets while everything runs. It prints ids of secrets, never a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polar.cli.options import Data, Format, Output
from polar.cli.output import note, print_json, say, show
from topics.environment import keys, settings
from topics.types.errors import NotReadyError

app = typer.Typer(no_args_is_help=True, help="The secrets that sign session keys: list, add, use, retire.")
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Id of a secret, from `polar keys list`.")]


@app.command("list")
def list_keys(output: Output = Format.TABLE, data: Data = None) -> None:
    """List the ids of the signing secrets; the last one signs."""
    found = list(keys.read_keys_file(_path(data)))
    uses = dict.fromkeys(found, "checks") | {found[-1]: "signs and checks"}
    if output is Format.JSON:
        print_json([{"key": key_id, "use": use} for key_id, use in uses.items()])
    else:
        show(["key", "use"], uses.items())


@app.command("add")
def add(data: Data = None) -> None:
    """Add a secret that checks but doesn't sign yet. Copy the file to every host, then run `polar keys use`."""
    key_id = keys.add_key(_path(data))
    say(key_id)
    note(f"{key_id} checks; once every host has the file: polar keys use {key_id}")


@app.command("use")
def use(key_id: KeyId, data: Data = None) -> None:
    """Sign with this secret from now on; the others still check."""
    keys.use_key(_path(data), key_id)
    say(f"{key_id} signs")


@app.command("retire")
def retire(key_id: KeyId, data: Data = None) -> None:
    """Remove a secret. Sessions with a key that it signed are refused from then on."""
    keys.retire_key(_path(data), key_id)
    say(f"{key_id} is removed")


def _path(data: Path | None) -> Path:
    """The keys file. Raises NotReadyError if there is none, or none that can be read."""
    path = settings.load(data).keys_path
    try:
        keys.read_keys_file(path)
    except (OSError, ValueError) as error:
        raise NotReadyError(f"no keys file: {error}; `polar up` makes one, or set POLAR_KEYS_FILE") from None
    return path
