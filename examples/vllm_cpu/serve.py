"""A vLLM server on this machine's CPU: started, waited for, ended; its log is kept.

    python -m examples.vllm_cpu.serve MODEL_DIR [--port 8000] [-- vLLM's own flags]

Only the standard library, so that programs in the dev environment (tests) and in vLLM's own (a trainer) can start one. The server ends when
its starter does, however that ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
"""What `make vllm` has made."""
PARENT_WATCH = ROOT / "polar" / "embedded" / "parent_watch.py"
START_S = 420.0
"""38 s on two quiet cores, 210 s where others kept them busy; the first start after an install writes bytecode, too."""
STOP_S = 20.0
LOOK_S = 0.25
ANSWER_S = 5.0
SHOWN = 4000
"""Of the log's end, where the server died: characters."""

SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cores are not ours alone
    "VLLM_SERVER_DEV_MODE": "1",  # pause, weight updates, versions
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
"""In the server's environment."""

FLAGS = (
    "--enforce-eager",
    "--dtype", "float32",  # "auto" makes bfloat16 of it, and no trainer's logprobs would agree
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    "--enable-scale-out",
    "--logprobs-mode", "processed_logprobs",
    "--max-logprobs", "-1",
)  # fmt: skip
"""What Polar wants of it (docs/vllm.md tells why); without CUDA graphs and compilation, which a CPU has no gain of."""


class ServerError(RuntimeError):
    """The server didn't come up; the message says where its log is, and how that ends."""


@dataclass(frozen=True)
class Server:
    """One that answers."""

    url: str
    """Without `/v1`."""
    model: str
    """What to ask it for."""
    model_dir: Path
    log: Path
    process: subprocess.Popen[bytes]


def environment() -> dict[str, str]:
    """For programs in vLLM's environment: its settings, and this checkout on the path."""
    return {**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)}


@contextmanager
def serving(
    model_dir: Path,
    *,
    log: Path,
    model: str = "tiny",
    port: int = 0,
    flags: Sequence[str] = FLAGS,
    settings: Mapping[str, str] = {},
    start_s: float = START_S,
) -> Iterator[Server]:
    """A server of the model in a Hugging Face folder, from its first healthy answer to the block's end.

    `port` 0: any free one; `log` is appended to. Raises ServerError where it doesn't answer within `start_s`, or ends before, and where
    another program has the port.
    """
    if not PYTHON.exists():
        raise ServerError(f"no vLLM at {PYTHON}: make vllm")
    port = _free_port(port)
    arguments = ["serve", str(model_dir), "--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [PYTHON, "-P", PARENT_WATCH, "vllm.entrypoints.cli.main", *arguments, *flags],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=environment() | dict(settings),
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, log, start_s)
        yield Server(url, model, model_dir, log, process)
    finally:
        _end(process)


def _free_port(wanted: int) -> int:
    """That one, or any where it is 0. Another's server on it would be taken for ours: raises ServerError."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise ServerError(f"port {wanted} can't be had: {error.strerror}; name another with --port") from None
        port: int = taken.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, start_s: float) -> None:
    late = time.monotonic() + start_s
    while not _is_healthy(url):
        if process.poll() is not None:
            raise ServerError(f"vLLM ended with {process.returncode}; {log} ends:\n{_tail(log)}")
        if time.monotonic() > late:
            raise ServerError(f"vLLM didn't answer within {start_s:.0f} s; {log} ends:\n{_tail(log)}")
        time.sleep(LOOK_S)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=ANSWER_S) as answer:  # noqa: S310 - our own
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-SHOWN:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and where that isn't enough SIGKILL; whatever it has left in its session goes with it."""
    if process.stdin is not None:
        process.stdin.close()
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--log", type=Path, default=Path("vllm.log"))
    parser.add_argument("flags", nargs="*", help="after `--`: vLLM's own, beside those that Polar wants")
    told = parser.parse_args()
    try:
        with serving(told.model_dir, log=told.log, port=told.port, flags=[*FLAGS, *told.flags]) as server:
            print(f"vLLM serves {server.model} at {server.url}; its log is {server.log}; Ctrl-C ends it", flush=True)
            code = server.process.wait()
            sys.exit(code if code >= 0 else 128 - code)
    except ServerError as error:
        sys.exit(f"vllm: {error}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
