"""What is kept of a session, and that no key is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.artifacts import KEY_SHOWN, redacted, stored
from polar.blobs import BlobStore
from polar.keys import PREFIX, KeyClaims, Signer

AROUND = st.text(st.characters(exclude_characters="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"))


@given(AROUND, AROUND, st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True))
def test_a_minted_key_is_taken_out_whole_wherever_it_stands(before: str, after: str, name: str) -> None:
    key = Signer({"k": "s" * 32}).mint(KeyClaims(f"{name}.0", 1, "r-1", expires_at=2**31, issued_at=0))
    assert redacted(before + key + after) == before + KEY_SHOWN + after


async def test_what_cannot_be_stored_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = f"\xff {PREFIX}abc.def".encode("latin-1")
    blobs = BlobStore(tmp_path / "blobs")
    kept = await stored(blobs, "r-1", {"agent_log": data, "mine": b""})
    assert [blobs.get(reference) for reference in kept.values()] == [b"\xff " + KEY_SHOWN.encode(), b""]
    (tmp_path / "file").write_text("")
    assert await stored(BlobStore(tmp_path / "file"), "r-1", {"agent_log": data}) == {}
    assert "artifact not kept" in capsys.readouterr().out
