"""Takes SWE-bench's evaluation script apart: the command that runs the tests, without the steps that bring the tests.

Such a script (swebench 4.1 makes it; swebench 5 has it in the column `eval_script`) resets the files of the test patch by `git checkout`,
applies the patch from a here-document, prints a marker, runs the tests, prints a marker and resets the files again. The evaluator does the
resetting and applying itself, since it must not trust a repository that an agent had.
"""

from __future__ import annotations

import re

from consumers.evaluators.swebench import END, START

_RESET = re.compile(r"git checkout [0-9a-f]{7,64}(?: .*)?")
_APPLY = re.compile(r"git apply .*<<\s*'(\w+)'\s*")
_NO_RESET = 'echo "No test files to reset"'
_PREAMBLE = ("#!/bin/bash", "set -uxo pipefail", "set -xo pipefail")
_INFORMATIVE = re.compile(r"git status|git show|git (?:-c core\.fileMode=false )?diff [0-9a-f]{7,64}")
"""They only print, and would run what the agent's settings of git name."""
_DOWNLOAD = re.compile(r"curl -o \S+ \S+")


def test_command(script: str) -> str:
    """The script without its resets and its patch, up to the end of the tests, so that it ends as they do.

    Raises ValueError for a script of another form.
    """
    kept: list[str] = []
    lines = iter(script.strip().split("\n"))
    is_patched = is_started = False
    for line in lines:
        stripped = line.strip()
        if stripped in _PREAMBLE or stripped == _NO_RESET or _RESET.fullmatch(stripped):
            continue
        if _INFORMATIVE.fullmatch(stripped):
            continue
        if found := _APPLY.fullmatch(stripped):
            if not any(later == found[1] for later in lines):
                raise ValueError(f"its here-document {found[1]} has no end")
            is_patched = True
            continue
        if _DOWNLOAD.fullmatch(stripped):
            raise ValueError(f"downloads files of the tests ({stripped}), which no step does yet")
        if END in stripped:
            break
        is_started |= START in stripped
        kept.append(line)
    else:
        raise ValueError(f"has no line with {END!r}")
    if not is_patched or not is_started:
        raise ValueError(f"isn't of swebench's form: it needs `git apply … <<'END'` and a line with {START!r}")
    # SWE-bench runs the script with bash -uxo pipefail. -x prints the marker, which the script itself only passes to `:`.
    return "\n".join(["set -uxo pipefail", *kept]) + "\n"
