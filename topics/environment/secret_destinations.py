"""A secret is sent only to an address of a source that is as trusted as its own.

A `polar.toml` lies in the current folder, which may be a cloned repository, and so may a data folder with its `polar.env`. Neither must
divert a secret that another source names: so an address, or what protects the way to it, counts from such a file only together with
secrets of the same file. A `polar.toml` may not name a secret of a data folder, and a `polar.env` none outside of its own folder.
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
REPLACED_BY = {"kafka_sasl_password": "kafka_sasl_password_file"}
"""A secret that isn't used beside another setting."""
DATA_MARK = "up.lock"
"""A file that `polar up` makes in each data folder."""


def require_own_sources(
    sources: Mapping[str, str], in_toml: Mapping[str, object], toml: str, recorded: Mapping[str, str], env_file: Path
) -> None:
    """Raises InputError for settings that would divert a secret.

    `sources`: where each setting in use comes from, for people, with `toml` for `polar.toml` and `str(env_file)` for the `polar.env` of
    the data folder; `in_toml` and `recorded` are the contents of these files.
    """
    files: dict[str, Mapping[str, object]] = {toml: in_toml, str(env_file): recorded}
    for secret, addresses in DESTINATIONS.items():
        source = sources.get(secret)
        if source is None or REPLACED_BY.get(secret) in sources:
            continue
        for address in addresses:
            if (found := sources.get(address)) in files and found != source:
                place = f"{toml} in the current folder" if found == toml else found
                raise InputError(
                    address,
                    files[found][address],
                    f"comes from {place}, and {secret}, which is sent there, from {source}: a {Path(found).name} may not divert a secret. "
                    f"Set POLAR_{address.upper()}, or both in one place, or remove the line, or name your system with --data DIR",
                )
        if source == toml and (folder := _data_folder_of(str(files[source][secret]))):
            raise InputError(
                secret,
                files[source][secret],
                f"is a secret of the data folder {folder}; use that system with --data {folder}",
            )
        if source == str(env_file) and secret.endswith("_file"):
            require_inside(env_file.parent, Path(str(files[source][secret])), secret, source)


def require_inside(data: Path, file: Path, secret: str, source: str) -> None:
    """Raises InputError for a file of a secret that lies outside of its data folder, or is a link that leads out of it."""
    try:
        is_inside = file.resolve().is_relative_to(data.resolve())
    except (OSError, RuntimeError):  # a circle of links
        is_inside = False
    if not is_inside:
        raise InputError(
            secret,
            str(file),
            f"comes from {source} and leads out of its folder, where a secret of yours may lie. If a `polar up` of yours runs there, start "
            f"it again; otherwise remove the line and set POLAR_{secret.upper()}",
        )


def _data_folder_of(file: str) -> Path | None:
    """The data folder in which a file lies."""
    try:
        return next((folder for folder in Path(file).resolve().parents if (folder / DATA_MARK).exists()), None)
    except OSError:
        return None
