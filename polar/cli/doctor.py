"""`polar doctor`: what works on this machine, what doesn't, and what to do about it. Changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from polar.cli.exits import Exit
from polar.cli.options import Data, EngineUrl, Format, Model, Output
from polar.cli.output import print_json, show
from topics.environment import settings
from topics.types.errors import InputError

if TYPE_CHECKING:
    from polar.doctor import Finding

MARKS = {"good": "✓", "later": "–", "bad": "✗"}


def doctor(
    engine_url: EngineUrl = None,
    model: Model = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Say what works on this machine, what doesn't, and what to do about it.

    Looks at the running system, too, where there is one, and with --engine at an inference server. Exits 3 where something is bad.
    """
    from polar import doctor

    if engine_url is None and model is not None:
        raise InputError("--model", model, "goes with --engine")
    found = settings.load(data)
    findings = [*doctor.machine(found.data), *doctor.installed()]
    findings += asyncio.run(doctor.system(found))
    if engine_url is not None:
        findings += asyncio.run(doctor.inference(engine_url, model))
    if output is Format.JSON:
        print_json([asdict(finding) for finding in findings])
    else:
        _say(findings)
    if any(finding.state is doctor.State.BAD for finding in findings):
        raise typer.Exit(Exit.NOT_READY)


def _say(findings: Sequence[Finding]) -> None:
    show(["", "what", "how it stands"], ([MARKS[one.state.value], one.what, one.said] for one in findings))
    todo = [one for one in findings if one.todo is not None]
    if todo:
        typer.echo()
    for one in todo:
        typer.echo(f"{MARKS[one.state.value]} {one.what}: {one.todo}")
