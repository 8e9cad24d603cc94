"""The presets that the suite of `test_presets.py` runs: what a model must say for each CLI to do the same work with its own tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Specimen:
    """One preset."""

    harness: str
    turns: list[dict[str, Any]]
    """In the form of `polar/scripted/README.md`: make right of wrong in a.txt, run `cat a.txt >c.txt; echo $HOME`, end with "Mended."."""
    calls: int
    """To the model, side calls included."""
    settings: dict[str, Any]
    """All that it takes."""

    def __str__(self) -> str:
        return self.harness


PI = Specimen(
    harness="pi",
    turns=[
        {"text": "I look first.", "calls": [{"name": "read", "arguments": {"path": "a.txt"}}]},
        {
            "calls": [
                {
                    "name": "edit",
                    "arguments": {"path": "a.txt", "edits": [{"oldText": "wrong", "newText": "right"}]},
                }
            ]
        },
        {"calls": [{"name": "bash", "arguments": {"command": "cat a.txt >c.txt; echo $HOME"}}]},
        {"text": "Mended."},
    ],
    calls=4,
    settings={"context_window": 100_000, "max_tokens": 1000},
)
PRESETS = [PI]
