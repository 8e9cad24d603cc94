"""Runs a Python module that ends when its parent process has ended, for whatever reason.

Run by path: `python -P parent_watch.py MODULE ARGS…`. Standard input is a pipe that the parent alone holds open. When it closes, this
process gets SIGTERM, and SIGKILL after GRACE_S; its process group is killed too if it leads one. The module, which runs in this process,
needs no code for this. A pipe, unlike PR_SET_PDEATHSIG, leaves time for a clean stop and works outside Linux.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

GRACE_S = 10.0
"""For a clean stop: the proxy and the workers take up to 8 s to finish calls and hand back sessions."""


def main(module: str, arguments: list[str]) -> None:
    """Run `module` as `python -m` would, and watch the pipe."""
    parent = os.dup(0)
    with open(os.devnull) as nothing:  # noqa: PTH123 - pathlib would take longer to import than the rest of many modules
        os.dup2(nothing.fileno(), 0)
    start(parent)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def start(parent: int) -> None:
    """End this process when the pipe closes of which `parent` is the reading end."""
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.read(parent, 512):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
