"""With `--record DIR`: the plain run of each CLI once more, its bodies written down, private text removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from consumers.runtimes.base import Runtime
from tests.consumers.harnesses.conftest import Models
from tests.harnesses.conftest import cli_of
from tests.harnesses.outcome import outcome_of
from tests.harnesses.recording import recording, write
from tests.harnesses.speakers import Speaker, those
from tests.harnesses.test_runs import script, work


@those()
async def test_the_bodies_of_a_plain_run_are_written_down(
    speaker: Speaker, runtime: Runtime, model: Models, request: pytest.FixtureRequest
) -> None:
    folder: str | None = request.config.getoption("--record", default=None)
    if folder is None:
        pytest.skip("records with --record DIR alone")
    await runtime.write_file("a.txt", b"this is wrong\n")
    async with (
        model(script(speaker, runtime, *speaker.specimen.turns)) as served,
        recording(served.access.proxy_url) as made,
    ):
        relayed = replace(served, access=replace(served.access, proxy_url=made.url))
        await work(speaker, runtime, relayed)
        outcome = await outcome_of(served)
    cli = cli_of(speaker)
    about = {"cli": cli.name, "version": cli.version, "dialect": speaker.dialect}
    folders = {
        str(runtime.workspace): "/workspace",
        str(runtime.home): "/home/agent",
        str(runtime.home.parent): "/runtime",
    }
    slugs = {folder.replace("/", "-").replace("_", "-"): name.replace("/", "-") for folder, name in folders.items()}
    write(Path(folder) / f"{speaker}.json", about, made, outcome.calls, folders | slugs)
