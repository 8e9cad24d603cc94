"""`python -m consumers.harnesses.install HARNESS`: install the CLI of a preset in the user's cache, with progress on stderr.

Exit codes: 0 if it is installed, 2 if HARNESS isn't a preset with a CLI, 3 if the installation failed. The last line has the reason.
"""

from __future__ import annotations

import sys

from consumers.harnesses.cli import Cli
from topics.environment import cache, registry
from topics.types.errors import InputError, NotReadyError


def main() -> None:
    try:
        if len(sys.argv) != 2:
            raise InputError("harness", " ".join(sys.argv[1:]), "name one harness")
        cli: Cli | None = getattr(registry.load(registry.Kind.HARNESS, sys.argv[1]), "cli", None)
        if cli is None:
            raise InputError("harness", sys.argv[1], "has no CLI; there is nothing to install")
        cli.install(_print)
    except InputError as error:
        _print(str(error))
        sys.exit(2)
    except (NotReadyError, cache.CacheError) as error:
        _print(" ".join(str(error).split()))
        sys.exit(3)


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
