"""Between `polar up` and one of its Python parts: the part ends when `up` is gone, however that ended.

Run by path: `python -P leash.py MODULE ARGS…`. Standard input is a pipe whose other end only `up` holds; at its end the module, which
runs in this very process, gets SIGTERM, and SIGKILL where it hasn't left after GRACE_S, with its process group where that is its own.
The module knows nothing of this.
A pipe, not PR_SET_PDEATHSIG: it leaves time for a clean stop, and it isn't Linux alone.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

GRACE_S = 10.0


def main(module: str, arguments: list[str]) -> None:
    """Run `module` as `python -m` would, on the leash."""
    leash = os.dup(0)
    with open(os.devnull) as nothing:  # noqa: PTH123 - pathlib would be the first import of many a small part
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_watch, args=(leash,), name="leash", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch(leash: int) -> None:
    while os.read(leash, 512):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
