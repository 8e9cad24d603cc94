"""Which login of a `polar up` a command takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.contract import acl
from topics.environment.settings import Settings
from topics.log import logins
from topics.types.errors import InputError


def person(data: Path) -> Settings:
    logins.ensure(data)
    variables = logins.variables(data)
    found = {name.removeprefix("POLAR_").lower(): value for name, value in variables.items()}
    return Settings(data=data, **found)  # type: ignore[arg-type] # pydantic converts them


def test_every_role_is_of_one_login() -> None:
    roles = [role for allowed in logins.LOGINS.values() for role in allowed]
    assert sorted(roles) == sorted(acl.ROLES)


def test_passwords_are_made_once_and_differ(tmp_path: Path) -> None:
    made = logins.ensure(tmp_path)
    assert logins.ensure(tmp_path) == made
    assert len(set(made.values())) == len(logins.LOGINS)


def test_a_process_takes_the_login_of_its_roles(tmp_path: Path) -> None:
    found = logins.of_roles(person(tmp_path), ["run", "init"])
    assert (found.kafka_sasl_username, found.sasl_password) == ("stages", logins.ensure(tmp_path)["stages"])


def test_roles_of_two_logins_are_refused_with_the_groups(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one process for each of: fanout coordinator builder; analytics webhooks"):
        logins.of_roles(person(tmp_path), ["fanout", "run"])


def test_a_login_of_the_users_own_stays(tmp_path: Path) -> None:
    own = Settings(data=tmp_path, kafka_sasl_username="mine", kafka_sasl_password="x")
    assert logins.of_roles(own, ["fanout", "run"]) is own
