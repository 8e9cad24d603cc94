"""Runs the cells of a notebook, as IPython does."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

CELLS_S = 200.0


async def run_cells(cells: Sequence[str]) -> None:
    """Run them in one namespace, as IPython does: with `await` at their top level, in the loop that runs."""
    namespace: dict[str, object] = {}
    async with asyncio.timeout(CELLS_S):
        for number, cell in enumerate(cells):
            code = compile(cell, f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            done = eval(code, namespace)
            if inspect.isawaitable(done):
                await done


def cells_of(notebook: Path) -> Iterator[str]:
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])
