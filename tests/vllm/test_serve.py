"""A server that can't start is told of, with the end of its log."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from examples.vllm_cpu import serve
from examples.vllm_cpu.serve import ServerError, serving


@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_a_folder_that_holds_no_model_is_said_at_once_with_the_log(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with (
        pytest.raises(ServerError, match=r"vLLM ended with 1; .*server\.log ends:"),
        serving(tmp_path / "model", log=tmp_path / "server.log"),
    ):
        pytest.fail("it serves nothing")


def test_without_an_environment_the_way_to_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PYTHON", tmp_path / "python")
    with pytest.raises(ServerError, match="make vllm"), serving(tmp_path, log=tmp_path / "log"):
        pytest.fail("it serves nothing")


def test_a_port_that_another_server_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health would be taken for ours."""
    monkeypatch.setattr(serve, "PYTHON", Path(sys.executable))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"port {port} can't be had: Address already in use"),
            serving(tmp_path, log=tmp_path / "log", port=port),
        ):
            pytest.fail("it serves nothing")
