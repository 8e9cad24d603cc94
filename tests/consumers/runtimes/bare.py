"""Python code that confines itself, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

Ended = subprocess.CompletedProcess[str]


def run_bare(code: str) -> Ended:
    """Run Python code in an interpreter like the one that supervisors are forked from: it imports our modules, and no packages."""
    text = f"import sys; sys.path.append({str(ROOT)!r})\n{code}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=False)
