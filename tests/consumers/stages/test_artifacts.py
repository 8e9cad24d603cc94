"""What is kept of a session, and that no key is."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from consumers.stages.artifacts import stored
from topics.environment import redaction
from topics.environment.blobs import FolderBlobs
from topics.environment.keys import ensure_keys_file
from topics.environment.redaction import KEY_SHOWN, PREFIX, SECRET_SHOWN
from topics.environment.settings import Settings


async def test_of_a_word_whose_beginning_the_log_left_out_nothing_is_kept(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    log = b"first\n[... 77 bytes left out here ...]\nZXlKaGJHY2lPaUpJ.c2lnbmF0dXJl last"
    kept = await stored(blobs, "r-1", {"agent_log": log}, 60.0)
    assert blobs.get(kept["agent_log"]) == b"first\n[... 77 bytes left out here ...]\n" + KEY_SHOWN.encode() + b" last"


async def test_what_cannot_be_stored_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = f"\xff {PREFIX}abc.def".encode("latin-1")
    blobs = FolderBlobs(tmp_path / "blobs")
    kept = await stored(blobs, "r-1", {"agent_log": data, "mine": b""}, 60.0)
    assert [blobs.get(reference) for reference in kept.values()] == [b"\xff " + KEY_SHOWN.encode(), b""]
    (tmp_path / "file").write_text("")
    assert await stored(FolderBlobs(tmp_path / "file"), "r-1", {"agent_log": data}, 60.0) == {}
    assert "artifact not kept" in capsys.readouterr().out


async def test_of_a_keys_file_that_a_program_printed_no_secret_is_kept(tmp_path: Path) -> None:
    """A program that runs as the worker's user (runtime `process`) reads the fleet's files."""
    ensure_keys_file(tmp_path / "keys.json")
    redaction.cover(Settings(data=tmp_path))
    try:
        printed = (tmp_path / "keys.json").read_bytes()
        blobs = FolderBlobs(tmp_path / "blobs")
        kept = await stored(blobs, "r-1", {"agent_log": printed, "patch": base64.encodebytes(printed)}, 60.0)
    finally:
        redaction.cover(Settings(data=tmp_path / "none"))
    assert set(json.loads(blobs.get(kept["agent_log"])).values()) == {SECRET_SHOWN}
    assert SECRET_SHOWN.encode() in blobs.get(kept["patch"])
