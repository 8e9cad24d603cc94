"""The LiteLLM proxy beside ours: the same engine behind it, nothing captured, in a virtual environment of its own in the user's cache."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alone import Family
from benchmarks.report import say
from benchmarks.stub_engine import MODEL
from benchmarks.system import child
from topics.environment import cache

VERSION = "1.106.2"
PACKAGE = f"litellm[proxy]=={VERSION}"
KEY = "sk-benchmark"
READY_S = 60.0
MARK = "installed"
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
}
"""Nothing fetched, nothing told, no debugging."""


@dataclass(frozen=True)
class LiteLLM:
    """A running proxy."""

    url: str
    process: Family


def environment() -> Path | None:
    """Its virtual environment, made now if it isn't there; None, and a line, where it can't be."""
    name = f"litellm-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return cache.installed(name, _install, whole=lambda folder: (folder / MARK).exists(), announce=say)
    except (cache.CacheError, OSError, subprocess.CalledProcessError) as error:
        say(f"LiteLLM is left out: it can't be installed ({error})")
        return None


def _install(folder: Path) -> None:
    say(f"installing {PACKAGE} (some 700 MB)")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, stdout=sys.stderr)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", PACKAGE]
    subprocess.run(pip, check=True, stdout=sys.stderr)
    (folder / MARK).touch()


@asynccontextmanager
async def serving(folder: Path, engine: str) -> AsyncIterator[LiteLLM | None]:
    """It before the engine at a URL until the end of the block; None, and a line, where it doesn't start."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as scratch:
        config = Path(scratch, "config.yaml")
        parameters = {"model": f"openai/{MODEL}", "api_base": f"{engine}/v1", "api_key": "none"}
        model = {"model_name": MODEL, "litellm_params": parameters}
        settings = {"model_list": [model], "general_settings": {"master_key": KEY}}
        config.write_text(json.dumps(settings))  # JSON is YAML
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        # The environment was renamed into place, so its scripts name a folder that is gone.
        program = "from litellm import run_server; run_server()"
        options = ("--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
        with child("-P", "-c", program, *options, python=str(folder / "bin" / "python"), environment=QUIET) as process:
            url = f"http://127.0.0.1:{port}"
            if await _answers(url, process):
                yield LiteLLM(url, Family(process.pid))
            else:
                say(f"LiteLLM is left out: it doesn't answer within {READY_S:.0f} s")
                yield None


async def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    try:
        async with asyncio.timeout(READY_S):
            while process.poll() is None:
                if await asyncio.to_thread(_is_alive, url):
                    return True
                await asyncio.sleep(0.2)
    except TimeoutError:
        pass
    return False


def _is_alive(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/liveliness", timeout=2) as response:  # noqa: S310 - ours
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
