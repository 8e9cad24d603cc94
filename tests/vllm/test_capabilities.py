"""What a real vLLM is found to do, with the flags that Polar wants and without any, and what the commands say of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from examples.vllm_cpu.serve import Server
from proxy.engines.capabilities import Capabilities, RouteState, detect, missing_features
from tests.acceptance.up.running import POLAR, environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

COMMAND_S = 120.0


def polar(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [POLAR, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


async def test_with_the_flags_nothing_is_lacking(vllm_server: Server) -> None:
    found = await detect(vllm_server.url, vllm_server.model)
    assert found is not None
    works = RouteState.WORKS
    assert (found.version, found.context) == ("0.32.0", 8192)
    assert (found.logprobs_mode, found.tools, found.tokenizer) == ("processed", True, True)
    assert (found.render, found.generate, found.derender) == (works, works, works)
    assert found.unasked_grammar is False
    assert found.weight_version is not None
    assert list(missing_features(found, "tokens")) == []


async def test_without_them_each_is_missed(bare_server: Server) -> None:
    off = RouteState.OFF
    found = await detect(bare_server.url, bare_server.model)
    assert found == Capabilities("0.32.0", 8192, "raw", False, True, off, off, off, None)


def test_doctor_says_what_to_start_it_with(bare_server: Server, tmp_path: Path) -> None:
    done = polar(tmp_path, "doctor", "--engine", bare_server.url, "--data", str(tmp_path / "data"))
    for flag in ("--enable-scale-out", "--logprobs-mode processed_logprobs", "--enable-auto-tool-choice"):
        assert flag in done.stdout
    assert "raw logprobs" in " ".join(done.stdout.split())


def test_tokens_mode_is_refused_where_the_server_has_not_the_routes(bare_server: Server, tmp_path: Path) -> None:
    (tmp_path / "polar.toml").write_text(f'[engines.tiny]\nurls = ["{bare_server.url}"]\nmode = "tokens"\n')
    done = polar(tmp_path, "proxy", "--port", "0", "--control-port", "0")
    assert done.returncode == 3
    assert 'mode "tokens" needs render, generate, derender: switched off' in done.stderr
    assert "start vLLM with --enable-scale-out" in done.stderr
