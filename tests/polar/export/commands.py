"""`polar export` in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from polar.cli import app


def export(*arguments: str | Path) -> Any:
    """What the command prints as JSON."""
    done = CliRunner().invoke(app.app, ["export", *map(str, arguments), "--format", "json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)
