"""The `polar` command: one module per subcommand. Heavy packages are imported inside functions, so `polar --help` needs none of them."""

import sys

import polar


def main() -> None:
    """The console script. `polar --version` answers without importing the subcommands."""
    if sys.argv[1:] == ["--version"]:
        print(f"polar {polar.__version__}")
        return
    try:
        for room in ("proxy", "consumers", "analytics"):
            polar.require_own_package(room)
    except ImportError as error:
        print(f"polar: {error}", file=sys.stderr)
        sys.exit(3)
    from polar.cli.app import app

    app(prog_name="polar")
