"""Where settings come from, and which source wins."""

import os
import re
from pathlib import Path

import pytest

from topics.environment import settings
from topics.environment.settings import ENV_FILE, read_env_file, write_env_file
from topics.types.errors import InputError, NotReadyError


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and no POLAR_ variables."""
    for name in [name for name in os.environ if name.startswith("POLAR_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def up(folder: Path, **values: str) -> None:
    """What `polar up` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    write_env_file(folder / ENV_FILE, {f"POLAR_{name.upper()}": value for name, value in values.items()})


def test_without_anything_there_are_defaults_and_no_kafka(clean: Path) -> None:
    found = settings.load()
    assert (found.namespace, found.data, found.replication) == ("polar", Path(".polar"), 3)
    assert (found.blobs_address, found.keys_path) == (Path(".polar/blobs"), Path(".polar/keys.json"))
    with pytest.raises(
        NotReadyError, match=r"polar.env doesn't exist\), and POLAR_KAFKA isn't set; start one with `polar up`"
    ):
        _ = found.bootstrap


@pytest.mark.parametrize("text", ["s3://bucket", "s3://bucket/", "s3://my.bucket-2/a/b", "s3://bucket/a//"])
def test_blobs_may_be_in_a_bucket(clean: Path, text: str) -> None:
    (clean / "polar.toml").write_text(f'blobs = "{text}"\n')
    found = settings.load().blobs_address
    assert str(found) == text.rstrip("/")


@pytest.mark.parametrize(
    "text", ["s3://", "s3://B", "s3://bucket?x=1", "gs://bucket", "http://host/bucket", "s3://a/b c"]
)
def test_another_address_of_blobs_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_BLOBS", text)
    with pytest.raises(InputError, match=r"POLAR_BLOBS.*expected s3://BUCKET"):
        settings.load()


def test_flags_win_over_the_environment_and_that_over_the_file(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "polar.toml").write_text('namespace = "file"\nkafka = "file:1"\nproxy_url = "http://file"\n')
    assert settings.load().namespace == "file"
    monkeypatch.setenv("POLAR_NAMESPACE", "environment")
    monkeypatch.setenv("POLAR_KAFKA", "environment:1")
    assert settings.load().namespace == "environment"
    found = settings.load(namespace="flag", kafka=None)
    assert (found.namespace, found.kafka, found.proxy_url) == ("flag", "environment:1", "http://file")


def test_a_running_system_in_the_data_folder_completes_what_is_not_said(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(clean / ".polar", kafka="up:9", namespace="upped")
    assert settings.load().bootstrap == "up:9"
    monkeypatch.setenv("POLAR_KAFKA", "environment:1")
    found = settings.load()
    assert (found.kafka, found.namespace) == ("environment:1", "upped")
    assert settings.load(namespace="flag").namespace == "flag"


def test_a_data_folder_that_is_named_stands_for_all_of_its_system(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_KAFKA", "environment:1")
    up(clean / "other", kafka="other:9")
    found = settings.load(clean / "other")
    assert (found.kafka, found.data) == ("other:9", clean / "other")
    assert settings.load(clean / "other", kafka="flag:1").kafka == "flag:1"


@pytest.mark.parametrize(("field", "value"), [("namespace", "Not OK"), ("replication", "0"), ("min_insync", "many")])
def test_a_bad_value_is_named_as_its_variable(field: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"POLAR_{field.upper()}", value)
    with pytest.raises(InputError, match=rf"POLAR_{field.upper()}: .*\(got '{value}'\)"):
        settings.load()


def test_a_value_of_the_environment_is_not_blamed_on_the_file(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "polar.toml").write_text("min_insync = 1")
    monkeypatch.setenv("POLAR_MIN_INSYNC", "many")
    with pytest.raises(InputError, match=r"^POLAR_MIN_INSYNC: "):
        settings.load()


def test_a_bad_value_of_a_data_folder_is_named_with_its_file(clean: Path) -> None:
    up(clean / ".polar", replication="many")
    with pytest.raises(InputError, match=r"^\.polar/polar\.env: POLAR_REPLICATION: "):
        settings.load()


def test_an_env_file_comes_back_whole(clean: Path) -> None:
    values = {"POLAR_KAFKA": "h:1", "POLAR_PROXY_URL": "http://h:2/?a=b"}
    write_env_file(clean / "x.env", values)
    assert read_env_file(clean / "x.env") == values
    assert read_env_file(clean / "none.env") == {}
    (clean / "x.env").write_text("# a comment\n\nPOLAR_KAFKA=h:1\n")
    assert read_env_file(clean / "x.env") == {"POLAR_KAFKA": "h:1"}


def test_engines_are_named_in_the_file_in_their_order(clean: Path) -> None:
    (clean / "polar.toml").write_text(
        """
        [engines.large]
        urls = ["http://a:8000/v1", "http://b:8000/"]
        model = "qwen"
        models = ["gpt-5", "*"]

        [engines.a-small_1]
        urls = ["https://c"]
        concurrency = 4
        logprobs_mode = "processed"
        """
    )
    engines = settings.load().engines
    assert list(engines) == ["large", "a-small_1"]
    assert engines["large"].urls == ("http://a:8000", "http://b:8000")
    assert (engines["large"].models, engines["a-small_1"].models) == (("gpt-5", "*"), ("*",))
    assert (engines["a-small_1"].model, engines["a-small_1"].concurrency) == (None, 4)


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("[engines.e]\nurls = []", "polar.toml: engines.e.urls: "),
        ('[engines.e]\nurls = ["localhost:8000"]', "polar.toml: engines.e.urls.0: .* (got 'localhost:8000')"),
        ('[engines.e]\nmodel = "m"', "polar.toml: engines.e.urls: Field required"),
        (
            '[engines.e]\nurls = ["http://a"]\nurl = "http://b"',
            "polar.toml: engines.e.url: no such field; do you mean urls.",
        ),
        ('[engines.e]\nurls = ["http://a"]\nconcurrency = 0', "polar.toml: engines.e.concurrency: .* (got 0)"),
        (
            '[engines.e]\nurls = ["http://a"]\nlogprobs_mode = "some"',
            "polar.toml: engines.e.logprobs_mode: .* 'raw' or 'processed'",
        ),
        ('[engines."A b"]\nurls = ["http://a"]', "polar.toml: engines.A b"),  # a name must be fit for a metric's label
        ("trust_task = true", "polar.toml: trust_task: no such setting; do you mean trust_tasks. (got True)"),
        ("replicas = 3", "polar.toml: replicas: no such setting; do you mean replication. (got 3)"),
        ("[trust]\ntasks = true", "polar.toml: trust: no such setting; .*trust_tasks"),
        ("[engine.e]\nurls = []", "polar.toml: engine: no such setting; do you mean engines."),
        ('trust_tasks = "perhaps"', "^polar.toml: trust_tasks: .*boolean.* (got 'perhaps')"),
        ('kafka = ["h:1"]', "^polar.toml: kafka: .*string"),
        ("[engines.a", "polar.toml: is no TOML: Expected .* declaration .* (got '{folder}"),
    ],
)
def test_a_bad_file_is_refused_with_its_field_or_its_place(clean: Path, text: str, error_text: str) -> None:
    (clean / "polar.toml").write_text(text)
    expected = error_text.replace("(", r"\(").replace(")", r"\)").replace("{folder}", re.escape(str(clean)))
    with pytest.raises(InputError, match=expected):
        settings.load()


def test_engines_in_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_ENGINES", '{"e": {"urls": ["http://a"]}}')
    assert settings.load().engines["e"].urls == ("http://a",)
    monkeypatch.setenv("POLAR_ENGINES", '{"e": {"urls": []}}')
    with pytest.raises(InputError, match=r"^POLAR_ENGINES: engines\.e\.urls: "):
        settings.load()
    monkeypatch.setenv("POLAR_ENGINES", "http://a")
    with pytest.raises(InputError, match="POLAR_ENGINES: expected JSON"):
        settings.load()


def test_images_in_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_IMAGES", '{"agent": "oci:/images/agent"}')
    assert settings.load().images == {"agent": "oci:/images/agent"}
    monkeypatch.setenv("POLAR_IMAGES", "oci:/images/agent")
    with pytest.raises(InputError, match="POLAR_IMAGES: expected JSON"):
        settings.load()


def test_a_password_is_read_from_its_file_each_time(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = clean / "password"
    file.write_text("first\n")
    monkeypatch.setenv("POLAR_KAFKA_SASL_PASSWORD_FILE", str(file))
    found = settings.load()
    assert found.sasl_password == "first"
    file.write_text("second")
    assert found.sasl_password == "second"
    file.write_text("\n")
    with pytest.raises(NotReadyError, match="is empty"):
        _ = found.sasl_password
    file.unlink()
    with pytest.raises(NotReadyError, match="POLAR_KAFKA_SASL_PASSWORD_FILE can't be read"):
        _ = found.sasl_password


def test_a_password_is_never_repeated(clean: Path) -> None:
    (clean / "polar.toml").write_text('kafka_sasl_password = ["hush"]\n')
    with pytest.raises(InputError, match=r"polar\.toml: kafka_sasl_password: ") as refused:
        settings.load()
    assert "hush" not in str(refused.value)
    for misspelt in ("kafka_sasl_pasword", "password"):
        (clean / "polar.toml").write_text(f'{misspelt} = "hush"\n')
        with pytest.raises(InputError, match=f"{misspelt}: no such setting") as refused:
            settings.load()
        assert "hush" not in str(refused.value)
    (clean / "polar.toml").write_text('kafka_sasl_password = "hush"\n')
    assert "hush" not in repr(settings.load())
