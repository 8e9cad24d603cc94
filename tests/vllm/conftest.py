"""A real vLLM for a whole session, with a tiny model that calls tools: made and trained by `examples/tiny_model`, kept in the user's cache.

`make vllm` comes first. Everything but the server runs in the tests' own environment.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.vllm_cpu.serve import PYTHON, ROOT, Server, environment, serving
from topics.environment import cache, http_json

SEED = 1
MAKER = ROOT / "examples" / "tiny_model"
MAKE_S = 900.0
"""For the quick model: 100 s on two quiet cores."""
FIRST_CALL_S = 180.0
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def tiny_model(maker: str = "examples.tiny_model", *scripts: Path) -> Path:
    """The folder of the model that a program makes, of the tiny model's own scripts and these; made, trained and kept at the first use,
    and again where one of them changes."""
    read = [*sorted(MAKER.rglob("*.py")), *scripts]
    digest = hashlib.sha256(b"".join(script.read_bytes() for script in read)).hexdigest()[:12]

    def make(folder: Path) -> None:
        command: list[str | Path] = [PYTHON, "-m", maker, folder, "--seed", str(SEED), "--quick"]
        subprocess.run(command, cwd=ROOT, env=environment(), check=True, timeout=MAKE_S)

    return cache.installed(
        f"{maker.rpartition('.')[2].replace('_', '-')}-{digest}-seed{SEED}-quick",
        make,
        whole=lambda folder: all((folder / name).exists() for name in FILES),
        announce=print,
    )


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The tiny model's folder."""
    assert PYTHON.exists(), f"no vLLM at {PYTHON}: make vllm"
    return tiny_model()


def first_call(server: Server) -> None:
    """The call at which a new server compiles. On busy cores it takes longer than a proxy waits for a server's features."""
    body = {"model": server.model, "prompt": "a", "max_tokens": 1}
    answer = http_json.send(f"{server.url}/v1/completions", body, timeout_s=FIRST_CALL_S)
    assert answer.status == 200, answer.body


@pytest.fixture(scope="session")
def vllm_server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server; its weights are those of `model_dir`, and a test that changes them changes them back."""
    with serving(model_dir, log=tmp_path_factory.mktemp("vllm") / "server.log") as server:
        first_call(server)
        yield server


@pytest.fixture(scope="session")
def bare_server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that was started with no flag that Polar wants."""
    log = tmp_path_factory.mktemp("bare") / "server.log"
    flags = ["--enforce-eager", "--dtype", "float32"]
    with serving(model_dir, log=log, flags=flags, settings={"VLLM_SERVER_DEV_MODE": "0"}) as server:
        first_call(server)
        yield server


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Any:
    """Prints a figure where people see it."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", end="", flush=True)

    return show
