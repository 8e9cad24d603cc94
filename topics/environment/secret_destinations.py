"""A secret is sent only to an address of a source that is as trusted as its own.

A `polar.toml` lies in the current folder, which may be a cloned repository. It must not divert a secret that another source names: so an
address, or what protects the way to it, counts from `polar.toml` only together with secrets of the same file. Such a file may not name a
secret of a data folder either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from topics.types.errors import InputError

KAFKA = ("kafka", "kafka_security_protocol", "kafka_sasl_mechanism", "kafka_ca_file")
DESTINATIONS: Mapping[str, tuple[str, ...]] = {
    "control_token_file": ("control_url",),
    "kafka_sasl_password": KAFKA,
    "kafka_sasl_password_file": KAFKA,
}
"""By the setting of a secret: the settings that decide who gets it."""
DATA_MARK = "up.lock"
"""A file that `polar up` makes in each data folder."""


def require_own_sources(sources: Mapping[str, str], in_toml: Mapping[str, object], toml: str) -> None:
    """Raises InputError for settings that would divert a secret.

    `sources`: where each setting in use comes from, for people; `toml` is the name of `polar.toml` among them, and `in_toml` its content.
    """
    for secret, addresses in DESTINATIONS.items():
        if (source := sources.get(secret)) is None:
            continue
        for address in addresses:
            if sources.get(address) == toml and source != toml:
                raise InputError(
                    address,
                    in_toml[address],
                    f"comes from polar.toml in the current folder, and {secret}, which is sent there, from {source}: a polar.toml may not "
                    f"divert a secret. Set POLAR_{address.upper()}, or both in one place",
                )
        if source == toml and (folder := _data_folder_of(str(in_toml[secret]))):
            raise InputError(
                secret,
                in_toml[secret],
                f"is a secret of the data folder {folder}; use that system with --data {folder}",
            )


def _data_folder_of(file: str) -> Path | None:
    """The data folder in which a file lies."""
    try:
        return next((folder for folder in Path(file).resolve().parents if (folder / DATA_MARK).exists()), None)
    except OSError:
        return None
