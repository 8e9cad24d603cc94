"""A server that can't start is told of, with the end of its log."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples.vllm_cpu import serve
from examples.vllm_cpu.serve import ROOT, ServerError, serving

LEAVE_S = 60.0


@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_a_folder_that_holds_no_model_is_said_at_once_with_the_log(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with (
        pytest.raises(ServerError, match=r"vLLM ended with 1; .*server\.log ends:"),
        serving(tmp_path / "model", log=tmp_path / "server.log"),
    ):
        pytest.fail("it serves nothing")


@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_nothing_of_a_server_outlives_its_starter_however_that_ended(model_dir: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.vllm_cpu.serve", model_dir, "--port", "0", "--log", tmp_path / "log"]
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert "vLLM serves" in starter.stdout.readline()
        served = psutil.Process(starter.pid).children(recursive=True)
        assert len(served) > 1, "vLLM has its engine in a process of its own"
        starter.kill()
    _, left = psutil.wait_procs(served, timeout=LEAVE_S)
    assert left == []


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
