"""`polar logs` prints the last lines of the logs of a `polar up`, and with --follow those that come."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from polar.cli import process
from polar.cli.options import Data
from polar.cli.output import say
from topics.environment import settings
from topics.types.errors import InputError, NotReadyError
from topics.waiting.first_done import first_done

FIELD = "PART"
LOOK_S = 0.2
"""Between two looks for new lines."""


def logs(
    part: Annotated[
        str | None, typer.Argument(metavar=f"[{FIELD}]", help="Only this part, such as proxy or stages.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=100_000, metavar="N", help="Last lines of each part.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.", show_default=False)
    ] = False,
    data: Data = None,
) -> None:
    """Print the last lines of the logs of a `polar up`. Lines of several parts begin with the part's name.

    The parts' files are in DATA/logs, and Kafka's in DATA/kafka/logs. Other processes log on stderr.
    """
    from polar.embedded import log_files

    folder = settings.load(data).data
    known = log_files.parts(folder)
    if not known:
        raise NotReadyError(
            f"no logs in {folder / 'logs'}: no `polar up` ran on this data folder; --data names another"
        )
    if part is not None and part not in known:
        raise InputError(FIELD, part, f"no such part; there are: {', '.join(sorted(known))}")
    chosen = {name: log_files.LogFile(path) for name, path in known.items() if part in (None, name)}
    width = max(map(len, chosen)) if part is None else None

    def print_lines(name: str, found: list[str]) -> None:
        for line in found:
            say(line if width is None else f"{name:<{width}}  {line}")

    async def keep_printing(stop: asyncio.Event) -> None:
        while not stop.is_set():
            for name, file in chosen.items():
                print_lines(name, file.more())
            await first_done(stop, timeout_s=LOOK_S)

    for name, file in chosen.items():
        print_lines(name, file.tail(lines))
    if follow:
        process.serve(keep_printing)
