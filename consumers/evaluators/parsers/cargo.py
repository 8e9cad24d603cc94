"""The output of `cargo test`. A test's name is its path, `tests::adds`; of a test in the documentation `src/lib.rs - add (line 3)`.

The crate isn't part of the name: a test of the same name in several test programs has the worst of its statuses.
"""

from __future__ import annotations

import re

from consumers.evaluators.parsers.output import Found, lines

_STATUS = {"ok": "PASSED", "FAILED": "FAILED", "ignored": "SKIPPED", "bench": "PASSED"}
_RESULT = re.compile(r"(ok|FAILED|ignored|bench)(?:$| <[\d.]+s>$|(?<=ignored), |(?<=bench): )")
"""Behind it: why a test is ignored, a benchmark's figures, the time of `--report-time`."""
_KIND = (" - should panic", " - compile fail", " - compile")
"""Ends of a name that say how the test is run."""


def read(text: str) -> Found:
    test = None
    for line in lines(text):
        end = line
        if line.startswith("test "):
            name, dots, after = line.removeprefix("test ").partition(" ... ")
            if dots:
                test, end = next((name.removesuffix(kind) for kind in _KIND if name.endswith(kind)), name), after
        # With --nocapture the status stands on a line of its own, behind what the test printed. That can look like a status, too, so all
        # count until the next test.
        if test is not None and (result := _RESULT.match(end)):
            yield test, _STATUS[result[1]]
