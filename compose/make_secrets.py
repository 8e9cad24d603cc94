#!/opt/polar/bin/python
"""Makes what the processes of a fleet share, in the folder that is named, each unless it is there.

keys.json signs session keys, and claim keys are derived from it. webhook.secret signs the webhooks, control.token opens the proxies'
control ports; Prometheus reads that one through its group.
"""

import secrets
import sys
from pathlib import Path

from topics.environment import private_files
from topics.environment.keys import ensure_keys_file
from topics.environment.webhook_signing import ensure_secret_file


def main(folder: Path) -> None:
    """Each file is whole or not there."""
    ensure_keys_file(folder / "keys.json")
    ensure_secret_file(folder / "webhook.secret")
    token = folder / "control.token"
    if not token.exists():
        private_files.replace(token, secrets.token_urlsafe(32), 0o640)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make-secrets FOLDER")
    main(Path(sys.argv[1]))
