"""Files of the current folder, which may be a cloned repository, divert no secret of another source: `polar.toml`, `.polar/polar.env`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topics.environment import settings
from topics.environment.settings import ENV_FILE, write_env_file
from topics.log import logins
from topics.types.errors import InputError


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("POLAR_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def up(folder: Path, **values: str) -> Path:
    """A data folder with the marks of a `polar up`."""
    folder.mkdir(parents=True)
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


def cloned(folder: Path, **recorded: str) -> None:
    """A data folder as somebody else wrote it."""
    folder.mkdir()
    write_env_file(folder / ENV_FILE, recorded)


FOUND = {
    "the default data folder": None,
    "a data folder that polar.toml names": 'data = "evil"\n',
    "a data folder that a variable names": None,
}


@pytest.fixture(params=FOUND)
def evil(request: pytest.FixtureRequest, repository: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a folder of the repository that commands use as their data folder."""
    if request.param == "the default data folder":
        return ".polar"
    if toml := FOUND[request.param]:
        (repository / "polar.toml").write_text(toml)
    else:
        monkeypatch.setenv("POLAR_DATA", "evil")
    return "evil"


def test_a_data_folder_diverts_no_token_of_the_environment(
    repository: Path, monkeypatch: pytest.MonkeyPatch, evil: str
) -> None:
    cloned(repository / evil, POLAR_CONTROL_URL="http://attacker")
    monkeypatch.setenv("POLAR_CONTROL_TOKEN_FILE", "/etc/polar/token")
    error = f"control_url: comes from {evil}/polar.env, and control_token_file, .* from POLAR_CONTROL_TOKEN_FILE: .*POLAR_CONTROL_URL"
    with pytest.raises(InputError, match=error):
        settings.load()
    with pytest.raises(InputError, match="may not divert a secret"):
        settings.load(Path(evil))
    monkeypatch.setenv("POLAR_CONTROL_URL", "http://own")
    assert settings.load().control_url == "http://own"


@pytest.mark.parametrize(
    "line",
    [
        "POLAR_KAFKA=attacker:9092",
        "POLAR_KAFKA_SECURITY_PROTOCOL=SASL_PLAINTEXT",
        "POLAR_KAFKA_SASL_MECHANISM=SCRAM-SHA-256",
        "POLAR_KAFKA_CA_FILE=attacker.pem",
    ],
)
@pytest.mark.parametrize("secret", ["POLAR_KAFKA_SASL_PASSWORD", "POLAR_KAFKA_SASL_PASSWORD_FILE"])
def test_a_data_folder_diverts_no_password_of_the_environment(
    repository: Path, monkeypatch: pytest.MonkeyPatch, secret: str, line: str
) -> None:
    name, _, value = line.partition("=")
    cloned(repository / ".polar", **{name: value})
    monkeypatch.setenv(secret, "hush")
    with pytest.raises(
        InputError, match=f"{name.removeprefix('POLAR_').lower()}: comes from .polar/polar.env"
    ) as refused:
        settings.load()
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("secret", ["control_token_file", "kafka_sasl_password_file"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_data_folder_names_only_secrets_that_lie_in_it(
    repository: Path, tmp_path: Path, evil: str, secret: str, linked: bool
) -> None:
    real = tmp_path / "real.password"
    real.write_text("hush\n")
    named = Path(evil, "secret") if linked else real
    cloned(
        repository / evil,
        POLAR_CONTROL_URL="http://attacker",
        POLAR_KAFKA="attacker:1",
        **{f"POLAR_{secret.upper()}": str(named)},
    )
    if linked:
        (repository / evil / "secret").symlink_to(real)
    error = f"{secret}: comes from {evil}/polar.env and leads out of its folder"
    with pytest.raises(InputError, match=error):
        settings.load()
    with pytest.raises(InputError, match=error):
        settings.load(Path(evil))


def test_a_process_takes_no_login_that_lies_outside_of_its_data_folder(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "real.password").write_text("hush\n")
    data = repository / ".polar"
    cloned(data, POLAR_KAFKA="attacker:1", **logins.variables(data))
    logins.ensure(data)
    (data / "logins" / "stages.password").unlink()
    (data / "logins" / "stages.password").symlink_to(tmp_path / "real.password")
    assert logins.of_roles(settings.load(), ["analytics"]).sasl_password
    with pytest.raises(InputError, match=r"kafka_sasl_password_file: .*leads out of"):
        logins.of_roles(settings.load(), ["run"])


@pytest.mark.parametrize("way", ["default", "--data", "POLAR_DATA", "polar.toml", "a link"])
def test_what_polar_up_records_is_used_however_its_folder_is_named(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("POLAR_KAFKA_SASL_PASSWORD", "of another Kafka")
    data = (repository if way == "default" else tmp_path / "elsewhere") / ".polar"
    up(data, POLAR_CONTROL_URL="http://own", POLAR_KAFKA="own:1", **logins.variables(data))
    logins.ensure(data)
    named = None
    if way == "--data":
        named = data
    elif way == "POLAR_DATA":
        monkeypatch.setenv("POLAR_DATA", str(data))
    elif way == "polar.toml":
        (repository / "polar.toml").write_text(f'data = "{data}"\n')
    elif way == "a link":
        (repository / ".polar").symlink_to(data)
    found = settings.load(named)
    assert (found.kafka, found.control_url) == ("own:1", "http://own")
    assert found.control_token_file == data / "control.token"
    assert found.sasl_password == (data / "logins" / "person.password").read_text()


def test_an_address_that_a_data_folder_only_repeats_gets_the_secret(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`polar up` on a Kafka of yours records its address, and not its password."""
    monkeypatch.setenv("POLAR_KAFKA", "own:1")
    monkeypatch.setenv("POLAR_KAFKA_SASL_PASSWORD", "hush")
    up(repository / ".polar", POLAR_KAFKA="own:1", POLAR_KAFKA_SASL_MECHANISM="PLAIN")
    assert settings.load(repository / ".polar").sasl_password == "hush"


def test_a_secret_that_environment_and_data_folder_both_name_goes_to_the_folders_address(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of `polar up` that was started before the proxy's address was known, and is started again."""
    data = up(tmp_path / "data", POLAR_CONTROL_URL="http://own")
    monkeypatch.setenv("POLAR_DATA", str(data))
    monkeypatch.setenv("POLAR_CONTROL_TOKEN_FILE", str(data / "control.token"))
    assert settings.load().control_url == "http://own"
    monkeypatch.delenv("POLAR_DATA")
    cloned(
        repository / ".polar", POLAR_CONTROL_URL="http://attacker", POLAR_CONTROL_TOKEN_FILE=str(data / "control.token")
    )
    with pytest.raises(InputError, match="leads out of its folder"):
        settings.load()


def test_an_address_by_the_name_of_none_is_one(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloned(repository / ".polar", POLAR_KAFKA="None")
    monkeypatch.setenv("POLAR_KAFKA_SASL_PASSWORD", "hush")
    with pytest.raises(InputError, match="may not divert a secret"):
        settings.load()
