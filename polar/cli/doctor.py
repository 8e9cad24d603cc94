"""`polar doctor` reports what works on this machine, what doesn't, and what to do about it. It changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import typer

from polar.cli.exits import Exit
from polar.cli.options import Data, EngineKeyFile, EngineUrl, Format, Model, Output
from polar.cli.output import print_json, say, show
from topics.environment import settings
from topics.types.errors import InputError

MARKS = {"good": "✓", "later": "–", "bad": "✗"}


def doctor(
    engine_url: EngineUrl = None,
    model: Model = None,
    engine_key_file: EngineKeyFile = None,
    output: Output = Format.TABLE,
    data: Data = None,
) -> None:
    """Report what works on this machine, what doesn't, and what to do about it.

    Checks the running system too if there is one, and an inference server with --engine. Exits with 3 if something is bad.
    """
    from polar.doctor.engine import inference
    from polar.doctor.finding import State
    from polar.doctor.host import installed, machine
    from polar.doctor.system import system

    if engine_url is None and model is not None:
        raise InputError("--model", model, "needs --engine")
    if engine_url is None and engine_key_file is not None:
        raise InputError("--engine-key-file", str(engine_key_file), "needs --engine")
    found = settings.load(data)
    findings = [*machine(found.data), *installed()]
    findings += asyncio.run(system(found))
    if engine_url is not None:
        findings += asyncio.run(inference(engine_url, model, engine_key_file))
    if output is Format.JSON:
        print_json([asdict(finding) for finding in findings])
    else:
        show(["", "what", "state"], ([MARKS[one.state.value], one.what, one.said] for one in findings))
        todo = [f"{MARKS[one.state.value]} {one.what}: {one.todo}" for one in findings if one.todo is not None]
        for line in ["", *todo] if todo else []:
            say(line)
    if any(finding.state is State.BAD for finding in findings):
        raise typer.Exit(Exit.NOT_READY)
