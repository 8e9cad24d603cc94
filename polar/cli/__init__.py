"""The `polar` command: one module a subcommand. Heavy parts are imported where they run, so that `polar --help` needs none of them."""

from polar.cli.app import main

__all__ = ["main"]
