"""How clients are made; what they do is tested where they are used."""

from pathlib import Path

import pytest

from polar.settings import Settings
from polar.types.errors import NotReady
from topics.kafka import connection


def test_a_plain_connection_says_where_and_nothing_more() -> None:
    assert connection(Settings(kafka="a:1,b:2")) == {"bootstrap_servers": "a:1,b:2", "security_protocol": "PLAINTEXT"}


def test_sasl_and_tls_are_passed_through() -> None:
    settings = Settings(
        kafka="a:1",
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism="SCRAM-SHA-512",
        kafka_sasl_username="polar",
        kafka_sasl_password="hush",
    )
    options = connection(settings)
    assert options.pop("ssl_context").check_hostname
    assert options == {
        "bootstrap_servers": "a:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "polar",
        "sasl_plain_password": "hush",
    }


def test_a_ca_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"POLAR_KAFKA_CA_FILE=.*none.pem"):
        connection(Settings(kafka="a:1", kafka_security_protocol="SSL", kafka_ca_file=tmp_path / "none.pem"))


def test_without_a_kafka_it_is_said() -> None:
    with pytest.raises(NotReady, match="POLAR_KAFKA"):
        connection(Settings(kafka=None))
