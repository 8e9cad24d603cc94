#!/opt/polar/bin/python
"""Makes what the processes of a fleet share, in a folder, each file unless it is there; then gives each process its own files.

keys.json signs session keys, and claim keys are derived from it. webhook.secret signs the webhooks, control.token opens the proxies'
control ports; Prometheus reads that one through its group. LOGIN.password is each login's for Kafka. A second folder has a folder for each
process, which gets the process's files alone: its password as kafka.password. The brokers get a server.properties with all passwords.
"""

import secrets
import sys
from pathlib import Path

from topics.contract import acl
from topics.environment import private_files
from topics.environment.keys import ensure_keys_file
from topics.environment.webhook_signing import ensure_secret_file
from topics.log.logins import PERSON

BROKER = "kafka"
"""The brokers' login, which may do everything."""
LOGINS = (BROKER, PERSON, *acl.ROLES)
FILES = {
    "coordinator": ("keys.json",),
    "run": ("keys.json",),
    "proxy": ("keys.json", "control.token"),
    "webhooks": ("webhook.secret",),
    "prometheus": ("control.token",),
    "cli": ("control.token",),
}
"""Files of each process besides its password."""
LOGIN_OF = {"cli": PERSON, "topics": BROKER}
"""Where it isn't the process's own name."""
MODES = {"control.token": 0o640}
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def main(folder: Path, shares: Path | None) -> None:
    """Each file is whole or not there."""
    ensure_keys_file(folder / "keys.json")
    ensure_secret_file(folder / "webhook.secret")
    for name in ("control.token", *(f"{login}.password" for login in LOGINS)):
        if not (folder / name).exists():
            private_files.replace(folder / name, secrets.token_urlsafe(32), MODES.get(name, 0o600))
    for share in sorted(shares.iterdir()) if shares is not None else ():
        if share.name == BROKER:
            # Another user's process reads it; nothing else mounts its folder.
            private_files.replace(share / "server.properties", _properties(folder), 0o644)
            continue
        login = LOGIN_OF.get(share.name, share.name)
        wanted = {name: name for name in FILES.get(share.name, ())}
        wanted |= {"kafka.password": f"{login}.password"} if login in LOGINS else {}
        for name, source in wanted.items():
            private_files.replace(share / name, (folder / source).read_text(), MODES.get(name, 0o600))


def _properties(folder: Path) -> str:
    """Lines of server.properties that the image adds the KAFKA_* variables to."""
    passwords = {login: (folder / f"{login}.password").read_text() for login in LOGINS}
    own = f'{LOGIN_MODULE} username="{BROKER}" password="{passwords[BROKER]}"'
    users = " ".join(f'user_{login}="{password}"' for login, password in passwords.items())
    return (
        f"listener.name.clients.plain.sasl.jaas.config={own} {users};\n"
        f'listener.name.controllers.plain.sasl.jaas.config={own} user_{BROKER}="{passwords[BROKER]}";\n'
    )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: make-secrets FOLDER [FOLDER-OF-SHARES]")
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else None)
