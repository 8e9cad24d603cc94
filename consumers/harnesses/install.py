"""`python -m consumers.harnesses.install HARNESS [VERSION]`: install the CLI of a preset in the user's cache, with progress on stderr.

VERSION is a task's `agent.version`. Exit codes: 0 if it is installed, 2 if HARNESS isn't a preset with a CLI, or VERSION no exact version,
3 if the installation failed, 4 if the registry lacks VERSION. The last line has the reason.
"""

from __future__ import annotations

import sys

from consumers.harnesses.cli import NO_SUCH_VERSION, Cli
from topics.environment import cache, registry
from topics.types.errors import InputError, NotReadyError


def main() -> None:
    try:
        if len(sys.argv) not in (2, 3):
            raise InputError("harness", " ".join(sys.argv[1:]), "name one harness, and a version or none")
        cli: Cli | None = getattr(registry.load(registry.Kind.HARNESS, sys.argv[1]), "cli", None)
        if cli is None:
            raise InputError("harness", sys.argv[1], "has no CLI; there is nothing to install")
        cli = cli.at(sys.argv[2] if len(sys.argv) == 3 else None)
    except InputError as error:
        _print(str(error))
        sys.exit(2)
    try:
        cli.install(_print)
    except InputError as error:
        _print(error.reason)
        sys.exit(NO_SUCH_VERSION)
    except (NotReadyError, cache.CacheError) as error:
        _print(" ".join(str(error).split()))
        sys.exit(3)


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
