"""The trainers' packages beside vLLM's environment: 600 MB in the user's cache.

The trainers name versions of torch, Ray or Python for their training, which isn't run here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from examples.vllm_cpu import packages as beside

PINS = Path(__file__).with_name("requirements.txt")


def packages() -> Path:
    """The folder of the packages. Raises as `examples.vllm_cpu.packages.packages` does."""
    # NeMo-Gym asks for a newer Python than its types need.
    folder = beside.packages(PINS, "--ignore-requires-python", name="trainers")
    # TransferQueue's and verl's wheels have a package `tests` at their top, which would hide this one.
    shutil.rmtree(folder / "tests", ignore_errors=True)
    return folder
