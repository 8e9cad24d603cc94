"""A `polar.toml` of the current folder, which may be a cloned repository, diverts no secret of another source."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.environment import settings
from topics.environment.settings import ENV_FILE, write_env_file
from topics.types.errors import InputError


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def up(folder: Path, **values: str) -> Path:
    """A data folder with the marks of a `polar up`."""
    folder.mkdir()
    (folder / "up.lock").touch()
    (folder / "control.token").write_text("token")
    recorded = {"POLAR_CONTROL_TOKEN_FILE": str(folder / "control.token"), **values}
    write_env_file(folder / ENV_FILE, recorded)
    return folder


DIVERTED = "comes from polar.toml in the current folder, and {secret}, which is sent there, from {source}"


@pytest.mark.parametrize("named", [True, False], ids=["by --data", "in the current folder"])
def test_a_running_systems_token_goes_to_its_own_address_only(repository: Path, tmp_path: Path, named: bool) -> None:
    (repository / "polar.toml").write_text('control_url = "http://attacker"\n')
    data = up((tmp_path if named else repository) / ".polar", POLAR_CONTROL_URL="http://own")
    if named:
        assert settings.load(data).control_url == "http://own"
        return
    said = DIVERTED.format(secret="control_token_file", source=".polar/polar.env")
    with pytest.raises(InputError, match=f"control_url: {said}.*Set POLAR_CONTROL_URL.*attacker"):
        settings.load()


def test_a_token_of_the_environment_is_not_diverted(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CONTROL_TOKEN_FILE", "/etc/polar/token")
    (repository / "polar.toml").write_text('control_url = "http://attacker"\n')
    with pytest.raises(
        InputError, match=DIVERTED.format(secret="control_token_file", source="POLAR_CONTROL_TOKEN_FILE")
    ):
        settings.load()
    monkeypatch.setenv("POLAR_CONTROL_URL", "http://own")
    assert settings.load().control_url == "http://own"


@pytest.mark.parametrize(
    "line",
    [
        'kafka = "attacker:9092"',
        'kafka_security_protocol = "SASL_PLAINTEXT"',
        'kafka_sasl_mechanism = "PLAIN"',
        'kafka_ca_file = "attacker.pem"',
    ],
)
@pytest.mark.parametrize("secret", ["POLAR_KAFKA_SASL_PASSWORD", "POLAR_KAFKA_SASL_PASSWORD_FILE"])
def test_a_password_of_the_environment_is_not_diverted(
    repository: Path, monkeypatch: pytest.MonkeyPatch, secret: str, line: str
) -> None:
    monkeypatch.setenv(secret, "hush")
    (repository / "polar.toml").write_text(line)
    with pytest.raises(InputError, match=f"may not divert a secret. Set POLAR_{line.split()[0].upper()}") as refused:
        settings.load()
    assert "hush" not in str(refused.value)


def test_a_file_that_names_both_sends_its_own_secret(repository: Path) -> None:
    (repository / "polar.toml").write_text(
        'kafka = "own:1"\nkafka_sasl_password_file = "kafka.password"\ncontrol_url = "http://own"\ncontrol_token_file = "token"\n'
    )
    found = settings.load()
    assert (found.kafka, found.control_url, str(found.control_token_file)) == ("own:1", "http://own", "token")


def test_a_file_names_no_secret_of_a_data_folder(repository: Path, tmp_path: Path) -> None:
    data = up(tmp_path / "data")
    (repository / "link").symlink_to(data / "control.token")
    for path in (str(data / "control.token"), "../data/control.token", "link"):
        (repository / "polar.toml").write_text(f'control_url = "http://attacker"\ncontrol_token_file = "{path}"\n')
        with pytest.raises(InputError, match=f"control_token_file: is a secret of the data folder {data}; .*--data"):
            settings.load()
