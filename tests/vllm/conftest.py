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
from polar import cache

SEED = 1
MAKER = ROOT / "examples" / "tiny_model"
MAKE_S = 600.0
"""For the quick model: 100 s on two quiet cores."""
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def tiny_model() -> Path:
    """The model's folder; made, trained and kept at the first use, and again where the scripts that make it change."""
    scripts = sorted(MAKER.rglob("*.py"))
    digest = hashlib.sha256(b"".join(script.read_bytes() for script in scripts)).hexdigest()[:12]
    return cache.installed(
        f"tiny-model-{digest}-seed{SEED}-quick",
        _make,
        whole=lambda folder: all((folder / name).exists() for name in FILES),
        announce=print,
    )


def _make(folder: Path) -> None:
    command: list[str | Path] = [PYTHON, "-m", "examples.tiny_model", folder, "--seed", str(SEED), "--quick"]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, timeout=MAKE_S)


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The tiny model's folder."""
    assert PYTHON.exists(), f"no vLLM at {PYTHON}: make vllm"
    return tiny_model()


@pytest.fixture(scope="session")
def vllm_server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server; its weights are those of `model_dir`, and a test that changes them changes them back."""
    with serving(model_dir, log=tmp_path_factory.mktemp("vllm") / "server.log") as server:
        yield server


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Any:
    """Prints a figure where people see it."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", end="", flush=True)

    return show
