"""The cells of docs/clients.md that follow from the code, without a run."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from consumers.harnesses import clients
from consumers.runtimes.base import ModelAccess

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def described(name: str) -> tuple[str, str, str]:
    """The first cells of the client's row: name, installation, and what is set."""
    model = ModelAccess("http://proxy", "sk", "any")
    with tempfile.TemporaryDirectory() as folder:
        written = asyncio.run(clients.write_settings(name, model, Path(folder)))
        files = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
        argument = " ".join(written.arguments).replace(folder, "FOLDER")
    names = [*written.env, *files, *([argument] if argument else [])]
    return f"`{name}`", f"`{clients.find(name).install}`", ", ".join(f"`{each}`" for each in names) or "nothing more"
