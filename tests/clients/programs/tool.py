"""The tool of all programs here."""

import subprocess


def bash(command: str) -> str:
    """Run a command in bash.

    Args:
        command: the command
    """
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False).stdout or "nothing"
