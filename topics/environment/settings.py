"""Settings from flags, then `POLAR_*` variables, then `polar.toml` in the current folder.

`--data DIR` of a running `polar up` replaces them: DIR/polar.env holds that system's addresses.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from topics.environment.s3 import S3Address
from topics.environment.secret_destinations import DESTINATIONS, require_own_sources
from topics.types import field_errors
from topics.types.completion import ReplayField
from topics.types.errors import InputError, NotReadyError

ENV_FILE = "polar.env"
TOML = "polar.toml"
LOGINS = "logins"
"""Folder in the data folder of a `polar up`: the password of each of its Kafka logins (`topics/log/logins.py`)."""
_IN_JSON = ("engines", "images")
"""Settings whose variable holds JSON."""
SECRET = frozenset({"kafka_sasl_password"})
"""Settings whose value must not appear in messages."""


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


ServerUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^/]"), AfterValidator(_base)]
"""URL of an inference server, with or without `/v1`; stored without."""


def _place(text: str) -> Path | S3Address:
    """A folder, or a place in a bucket. Raises ValueError."""
    return S3Address.parse(text) if "://" in text else Path(text)


def _is_place(text: str) -> str:
    if not text:
        raise ValueError("expected a folder, or s3://BUCKET[/PREFIX]")
    _place(text)
    return text


PlaceText = Annotated[
    str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value), AfterValidator(_is_place)
]
"""A folder, or s3://BUCKET[/PREFIX]."""
ENGINE_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
EngineName = Annotated[str, StringConstraints(pattern=ENGINE_NAME)]


class EngineSettings(BaseModel):
    """An engine of the proxy: `[engines.<name>]` in polar.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: Annotated[tuple[ServerUrl, ...], Field(min_length=1)]
    """Its servers, all with the same model and weights."""
    model: str | None = None
    """Model name in requests to the servers; None: the only model that they serve."""
    models: tuple[str, ...] = ("*",)
    """Model names that harnesses may request; `*`: any."""
    mode: str = "chat"
    """`chat`; `tokens`, which continues from the sampled tokens; or the name of an engine plug-in."""
    concurrency: int = Field(default=256, ge=1)
    """Most calls in flight from one proxy process; further calls wait."""
    logprobs_mode: Literal["raw", "processed"] | None = None
    """The servers' `--logprobs-mode`; None: detected at the proxy's start, otherwise recorded as unknown."""
    unasked_grammar: bool | None = None
    """Whether the servers constrain tool calls that no request asks to constrain (vLLM's --tool-strict-level; GLM-4.7's parser does by
    default). None: detected at the proxy's start where `render` answers, otherwise recorded as unknown. Mode `tokens` doesn't need it."""
    api_key_file: Path | None = None
    """File with the API key that the servers demand (vLLM's `--api-key`). Read again when it changes."""
    capture: frozenset[ReplayField] = frozenset()
    """What to store of each call beside its tokens, in the blob store: `routed_experts` (vLLM's `--enable-return-routed-experts`) and
    `sampling_mask` (`--return-sampling-mask`). Mode `tokens` only."""


class Settings(BaseSettings):
    """Settings of a process. Field `x` is `POLAR_X` in the environment and `x` in polar.toml."""

    model_config = SettingsConfigDict(env_prefix="POLAR_", toml_file=TOML, extra="ignore", frozen=True)

    data: Path = Path(".polar")
    """Folder on this host for runtimes, and for a whole embedded system."""
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")] = "polar"
    """Prefix of topics, groups, transactional ids and container labels, so that experiments can share a cluster."""
    kafka: str | None = None
    """Bootstrap servers, host:port[,host:port]."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    kafka_sasl_username: str | None = None
    kafka_sasl_password: str | None = Field(default=None, repr=False)
    kafka_sasl_password_file: Path | None = None
    """File with the password, which keeps it out of the environment."""
    kafka_ca_file: Path | None = None
    """PEM of the authorities for the brokers' certificates. Default: the system's."""
    kafka_cert_file: Path | None = None
    """PEM of this client's certificate and chain."""
    kafka_key_file: Path | None = None
    """PEM of the certificate's key. Default: in the certificate's file."""
    replication: int = Field(default=3, ge=1)
    min_insync: int = Field(default=2, ge=1)
    proxy_url: str | None = None
    """Base of the model proxy, without `/v1`, as the harness reaches it."""
    control_url: str | None = None
    control_token_file: Path | None = None
    blobs: PlaceText | None = None
    """The blob store: a folder, or s3://BUCKET[/PREFIX] (`topics/environment/s3.py`). Default: DATA/blobs."""
    lake: PlaceText | None = None
    """Where the lake is, in a subfolder for each namespace: a folder, or s3://BUCKET[/PREFIX]. Default: DATA/lake."""
    keys_file: Path | None = None
    """The fleet's signing secrets. Default: DATA/keys.json."""
    webhook_secret_file: Path | None = None
    """Secrets that sign webhooks, one `whsec_` secret a line. Default: DATA/webhook.secret."""
    webhook_hosts: str = "*"
    """Hosts that webhooks may call: names or patterns, separated by commas; `*`: any."""
    image_hosts: str = ""
    """Hosts from which engines may fetch images that requests name by URL: names or patterns, separated by commas. Default: none, so that
    images must be `data:` URLs."""
    large_bodies_mib: int = Field(default=64, ge=1)
    """MiB of request bodies over 4 MiB that one proxy process works on at a time; further ones wait. With 64, 25 requests of 60 MiB at
    once took 322 MB of memory."""
    trust_tasks: bool = False
    """Allow tasks the runtimes `apptainer`, `docker`, `landlock` and `process`, the network policy `host`, and images of any registry.
    Where cells don't work, tasks without a `backend` run in `landlock` or `process`."""
    engines: dict[EngineName, EngineSettings] = {}
    """By name; the first serves models that no other engine lists."""
    images: dict[str, str] = {}
    """Where workers find the images that tasks name: `[images]` in polar.toml, a name as tasks write it and its source. A source is
    docker://REFERENCE, http://HOST[:PORT]/REFERENCE for a registry without TLS, oci:/FOLDER[:TAG], oci-archive:/FILE or
    docker-archive:/FILE. If a name ends with `/*`, so does its source. Names that aren't listed can only mean images of public registries,
    unless the worker trusts its tasks."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers. Raises NotReadyError if none are set."""
        if self.kafka is None:
            raise NotReadyError(
                f"no Kafka: no Polar runs on the data folder {self.data} ({ENV_FILE} doesn't exist), and POLAR_KAFKA isn't set; "
                "start one with `polar up`, name the folder of one that runs (--data), or name your Kafka"
            )
        return self.kafka

    @property
    def sasl_password(self) -> str:
        """The SASL password. Raises NotReadyError if it is missing."""
        file = self.kafka_sasl_password_file
        if file is None:
            if self.kafka_sasl_password is None:
                raise NotReadyError(
                    f"{self.kafka_security_protocol} needs a password: set POLAR_KAFKA_SASL_PASSWORD_FILE to its file"
                )
            return self.kafka_sasl_password
        try:
            password = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotReadyError(f"POLAR_KAFKA_SASL_PASSWORD_FILE can't be read: {error}") from None
        if not password:
            raise NotReadyError(f"POLAR_KAFKA_SASL_PASSWORD_FILE: {file} is empty")
        return password

    @property
    def blobs_address(self) -> Path | S3Address:
        return self.data / "blobs" if self.blobs is None else _place(self.blobs)

    @property
    def lake_address(self) -> Path | S3Address:
        """Without the namespace."""
        return self.data / "lake" if self.lake is None else _place(self.lake)

    @property
    def lake_folder(self) -> Path:
        """The lake's folder on this host; of a lake in a bucket, that of copies and drafts."""
        address = self.lake_address
        return (address if isinstance(address, Path) else self.data / "lake-copies") / self.namespace

    @property
    def keys_path(self) -> Path:
        return self.keys_file or self.data / "keys.json"

    @property
    def webhook_secret_path(self) -> Path:
        return self.webhook_secret_file or self.data / "webhook.secret"


def load(data: Path | None = None, **flags: Any) -> Settings:
    """Settings from flags (None: not set), the environment and polar.toml, completed by DIR/polar.env of a running `polar up`.

    An explicit `data` takes precedence over the environment, since it names a whole system. Raises InputError.
    """
    explicit = {name: value for name, value in flags.items() if value is not None}
    if data is not None:
        explicit["data"] = data
    in_toml: dict[str, Any] = {}
    recorded: dict[str, str] = {}
    env_file = Path(ENV_FILE)
    try:
        in_toml = TomlConfigSettingsSource(Settings)()
        _require_known(in_toml)
        settings = Settings(**explicit)
        env_file = settings.data / ENV_FILE
        named = {
            name.removeprefix("POLAR_").lower(): value
            for name, value in read_env_file(env_file).items()
            if name.startswith("POLAR_")
        }
        is_complete = data is not None
        recorded = {
            name: value for name, value in named.items() if is_complete or name not in settings.model_fields_set
        }
        sources = _sources(in_toml, _decided(settings, recorded, named), explicit, env_file)
        require_own_sources(sources, in_toml, TOML, named, env_file)
        return Settings(**{**recorded, **explicit, "data": settings.data})
    except tomllib.TOMLDecodeError as error:
        raise InputError("polar.toml", str(Path("polar.toml").absolute()), f"is no TOML: {error}") from None
    except SettingsError as error:
        variable = next((f"POLAR_{name.upper()}" for name in _IN_JSON if f'"{name}"' in str(error)), "POLAR_*")
        raise InputError(variable, os.environ.get(variable), f"expected JSON: {error.__cause__}") from None
    except ValidationError as error:
        first = field_errors.first_error(error)
        field = ".".join(map(str, first["loc"]))
        place = _sources(in_toml, recorded, explicit, env_file).get(field.partition(".")[0])
        words = field_errors.reason(first)
        if first["type"] == "extra_forbidden":
            words += f"; {field_errors.meant(str(first['loc'][-1]), EngineSettings.model_fields)}"
        raise InputError(_label(field, place), "…" if field in SECRET else first["input"], words) from None


def _require_known(in_toml: Mapping[str, object]) -> None:
    """Raises InputError for a setting that doesn't exist: ignored, a misspelt one would have its default."""
    for name, value in in_toml.items():
        if name not in Settings.model_fields:
            advice = field_errors.meant(name, Settings.model_fields)
            is_secret = not isinstance(value, bool | int | float)  # perhaps
            raise InputError(f"{TOML}: {name}", "…" if is_secret else value, f"no such setting; {advice}")


def _label(field: str, place: str | None) -> str:
    """A setting with the place that a person changes, by its source (`_sources`)."""
    if place == TOML or "." in field:
        return f"{place}: {field}"
    variable = f"POLAR_{field.upper()}"
    return variable if place in (None, variable) else f"{place}: {variable}"


def _decided(settings: Settings, recorded: Mapping[str, str], named: Mapping[str, str]) -> list[str]:
    """Settings that DIR/polar.env decides: those that it changes, and secrets that it names as the other sources do.

    `settings`: those of the other sources; `named`: all that DIR/polar.env names; `recorded`: those of them that count.
    """
    repeated = {name for name, value in named.items() if str(getattr(settings, name, None) or "") == value}
    return [*(recorded.keys() - repeated), *(DESTINATIONS.keys() & repeated)]


def _sources(in_toml: Iterable[str], decided: Iterable[str], explicit: Iterable[str], env_file: Path) -> dict[str, str]:
    """Where each setting in use comes from, for people. `decided`: those that DIR/polar.env decides."""
    in_environment = {name.lower().removeprefix("polar_") for name in os.environ if name.lower().startswith("polar_")}
    return {
        **dict.fromkeys(in_toml, TOML),
        **{name: f"POLAR_{name.upper()}" for name in in_environment},
        **dict.fromkeys(decided, str(env_file)),
        **dict.fromkeys(explicit, "the program"),
    }


def read_env_file(path: Path) -> dict[str, str]:
    """Values of `NAME=value` lines; empty without a file."""
    if not path.exists():
        return {}
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def write_env_file(path: Path, values: dict[str, str]) -> None:
    """Write DIR/polar.env, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    temporary.replace(path)
