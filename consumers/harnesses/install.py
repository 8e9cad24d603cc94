"""`python -m consumers.harnesses.install HARNESS`: have the CLI of a preset in the user's cache, its progress on stderr.

Exits 0 when it is there, 2 where HARNESS is no preset with a CLI, 3 where it can't be had now; the last line says why.
"""

from __future__ import annotations

import sys

from consumers.harnesses.cli import Cli
from topics.environment import cache, registry
from topics.types.errors import InputError, NotReady


def main() -> None:
    try:
        if len(sys.argv) != 2:
            raise InputError("harness", " ".join(sys.argv[1:]), "name one")
        cli: Cli | None = getattr(registry.load(registry.Kind.HARNESS, sys.argv[1]), "cli", None)
        if cli is None:
            raise InputError("harness", sys.argv[1], "comes without a CLI; there is nothing to install")
        cli.install(_say)
    except InputError as error:
        _say(str(error))
        sys.exit(2)
    except (NotReady, cache.CacheError) as error:
        _say(" ".join(str(error).split()))
        sys.exit(3)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
