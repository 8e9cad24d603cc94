"""`polar rest` as far as nothing is served yet: what can't work is said at once, with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.polar.cli.commands import polar


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("--host 0.0.0.0", 2, "webhook workers need one: add --advertise http://HOST:PORT"),
        ("--advertise here:8410", 2, "--advertise: must be a URL like http://10.0.0.7:8410"),
        ("--files nowhere", 2, "--files: must be a folder"),
        ("", 3, "name its file with POLAR_CONTROL_TOKEN_FILE"),
    ],
)
def test_what_cannot_work_is_refused(
    arguments: str, code: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLAR_DATA", str(tmp_path))
    monkeypatch.setenv("POLAR_KAFKA", "127.0.0.1:9")
    found, _, stderr = polar("rest", "--port", "0", *arguments.split())
    assert (found, words in " ".join(stderr.split())) == (code, True), stderr
