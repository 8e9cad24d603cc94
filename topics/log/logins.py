"""The Kafka logins of a `polar up`: one for each of its processes and one for the person at the machine, with their roles.

Passwords are files in DATA/logins, 0600. They stay when the system restarts, so clients that are still running can log in again.
DIR/polar.env names the person's login. A command that does a process's part takes the login of its roles instead.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

from topics.contract import acl
from topics.environment import private_files
from topics.environment.secret_destinations import require_inside
from topics.environment.settings import LOGINS as FOLDER
from topics.environment.settings import Settings
from topics.types.errors import InputError

PERSON = "person"
REBUILD = "rebuild-table"
"""The role of a command, which writes what only a coordinator may write."""
LOGINS: dict[str, tuple[str, ...]] = {
    "deciding": ("fanout", "coordinator", "builder", REBUILD),
    "lake": ("analytics", "webhooks"),
    "proxy": ("proxy",),
    "stages": ("init", "run", "evaluate"),
    PERSON: ("submitter", "reader", "service", "trainer", "rebuild", "verifier", "replayer", "autoscaler", "admin"),
}
"""Roles of each login (`topics/contract/acl.py`)."""


def ensure(data: Path) -> dict[str, str]:
    """Passwords by login; those that are missing are generated."""
    folder = data / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    for login in LOGINS:
        private_files.create(_file(data, login), secrets.token_urlsafe(32))
    return {login: _file(data, login).read_text() for login in LOGINS}


def rights(namespace: str) -> dict[str, list[acl.Right]]:
    """All rights of each login, by its Kafka principal."""
    return {
        f"User:{login}": [right for role in roles for right in acl.rights(role, namespace)]
        for login, roles in LOGINS.items()
    }


def variables(data: Path) -> dict[str, str]:
    """The settings of the person's login, for DIR/polar.env."""
    return {
        "POLAR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "POLAR_KAFKA_SASL_MECHANISM": "PLAIN",
        "POLAR_KAFKA_SASL_USERNAME": PERSON,
        "POLAR_KAFKA_SASL_PASSWORD_FILE": str(_file(data, PERSON)),
    }


def of_roles(settings: Settings, roles: Collection[str]) -> Settings:
    """The settings with the login of a process with these roles, if they have the login of the person of a `polar up`.

    Raises InputError if no login has all roles, or if a login's file leads out of the data folder.
    """
    data, file = settings.data.absolute(), settings.kafka_sasl_password_file
    if file is None or file.resolve() != _file(data, PERSON).resolve():
        return settings
    for login, allowed in LOGINS.items():
        if set(roles) <= set(allowed):
            require_inside(data, _file(data, login), "kafka_sasl_password_file", str(data / FOLDER))
            return settings.model_copy(
                update={"kafka_sasl_username": login, "kafka_sasl_password_file": _file(data, login)}
            )
    workers = [[role for role in allowed if role != REBUILD] for login, allowed in LOGINS.items() if login != PERSON]
    groups = "; ".join(map(" ".join, workers))
    reason = f"no login of this `polar up` has the rights of all of them; start one process for each of: {groups}"
    raise InputError("roles", " ".join(roles), reason)


def _file(data: Path, login: str) -> Path:
    return data / FOLDER / f"{login}.password"
