"""A preset as data: what a TOML file says of a CLI. docs/harness.md has a complete example.

Every key and every placeholder is checked when the file is read; an error names the file, the field and what there is.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from consumers.harnesses.settings_file import Format
from consumers.harnesses.templates import check
from topics.types import field_errors
from topics.types.errors import InputError
from topics.types.mcp import FIELDS

SIZE_LIMIT = 1024 * 1024
"""Bytes of a file."""
PLACEHOLDERS = ("model", "proxy_url", "home", "workspace", "instruction_file")
"""Names that every template may use; `settings.NAME`, and `settings.NAME.VALUE` of a choice, come on top."""
SERVER_PLACEHOLDERS = {"stdio": ("command", "args", "command_line", "env")}
"""Names in the template of an MCP server by its transport; of other transports its fields (`topics.types.mcp.FIELDS`)."""
OF_A_RUN = ("workspace", "instruction_file")
"""Names that a person's own program doesn't have: with `client`, `env` and `files` may not use them."""
CLIENT_PLACEHOLDERS = ("model", "proxy_url", "key", "home")
"""Names in the templates of a client; `home` is the folder that holds its settings."""
SETTING = r"^[a-z][a-z0-9_]*$"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _is_below_home(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or "" in parts or ".." in parts or "\0" in path:
        raise ValueError("must be a path below the home, like .my-agent/settings.json")
    return path


P = TypeVar("P", bound=Part)
HomePath = Annotated[str, StringConstraints(min_length=1), AfterValidator(_is_below_home)]
Text = Annotated[str, StringConstraints(min_length=1)]


class Install(Part):
    """Where the CLI comes from: a package of the npm registry, or of the Python Package Index."""

    npm: Text | None = None
    pypi: Text | None = None
    version: Text
    megabytes: int = Field(ge=1)
    """Approximate size on disk after the installation."""
    program: Text | None = None
    """With `npm`: the program below `node_modules`, a script for node or a binary."""
    module: Text | None = None
    """With `pypi`: the module for `python -m`."""
    beside: tuple[Text, ...] = Field(default=(), strict=False)
    """With `pypi`: other packages, each with its version."""

    @model_validator(mode="after")
    def _one_registry(self) -> Self:
        if (self.npm is None) == (self.pypi is None):
            raise ValueError("give exactly one of npm and pypi")
        needed, other = ("program", "module") if self.npm else ("module", "program")
        registry = "npm" if self.npm else "pypi"
        if getattr(self, needed) is None:
            raise ValueError(f"{needed} is needed with {registry}")
        if getattr(self, other) is not None or (self.npm and self.beside):
            raise ValueError(f"{other if getattr(self, other) else 'beside'} doesn't go with {registry}; leave it out")
        return self


class Setting(Part):
    """A setting of a task: a number of 1 or more, or one of several choices."""

    default: int | str
    choices: dict[str, dict[str, str]] | None = None
    """The values of a setting that is no number, each with texts that templates may use; all have the same names."""
    meaning: str = ""
    """A sentence for `polar tasks docs`."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.choices is None:
            if not isinstance(self.default, int) or self.default < 1:
                raise ValueError("default must be a number of 1 or more; a text needs choices")
            return self
        if self.default not in self.choices:
            raise ValueError(f"default must be one of choices: {', '.join(self.choices)}")
        names = {frozenset(texts) for texts in self.choices.values()}
        if len(names) > 1:
            raise ValueError("every choice needs texts of the same names, and an empty text where it has none")
        return self

    @property
    def names(self) -> Iterator[str]:
        """Names of the texts that each choice has."""
        return iter(next(iter(self.choices.values()))) if self.choices else iter(())


class SettingsFile(Part):
    """A file that is written before the CLI starts."""

    path: HomePath
    format: Format
    content: dict[str, Any] | list[Any]
    """A list only as JSON, and without MCP servers."""

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        if self.format == "toml" and isinstance(self.content, list):
            raise ValueError("content must be a table, since a TOML file is one")
        if self.format == "env" and not (
            isinstance(self.content, dict) and all(isinstance(value, str) for value in self.content.values())
        ):
            raise ValueError("content must be a table of texts, since a file of variables is one")
        return self

    @field_validator("content")
    @classmethod
    def _is_json(cls, value: dict[str, Any] | list[Any]) -> dict[str, Any] | list[Any]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"may hold texts, numbers, booleans, lists and tables: {error}") from None
        return value


class Mcp(Part):
    """How the CLI's settings name MCP servers: in `file` under `key`, by server, a template for each transport that it can."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    file: HomePath
    key: Text
    stdio: dict[str, Any] | None = None
    sse: dict[str, Any] | None = None
    streamable_http: dict[str, Any] | None = Field(default=None, alias="streamable-http")

    @property
    def templates(self) -> Mapping[str, dict[str, Any]]:
        """By transport."""
        found = {"stdio": self.stdio, "sse": self.sse, "streamable-http": self.streamable_http}
        return {transport: template for transport, template in found.items() if template is not None}


class Client(Part):
    """How a person starts a program whose model is a session's: in a folder of the person's choice, outside of a sandbox."""

    program: Text | None = None
    """A program on the PATH. None: a library, whose program is the person's own."""
    install: Text
    """The command by which people install it."""
    like: Text | None = None
    """A preset whose settings it also reads."""
    env: dict[str, str] = {}
    """Added to the variables of every session and of the preset. They lead the program to its settings, outside of the person's home."""
    arguments: tuple[str, ...] = Field(default=(), strict=False)
    """Arguments before all others, for what no variable and no file can say."""
    files: tuple[SettingsFile, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        check([*self.arguments, self.env, *(file.content for file in self.files)], CLIENT_PLACEHOLDERS)
        return self


class Preset(Part):
    """The file."""

    install: Install | None = None
    program: Text | None = None
    """In place of `install`: a program on the PATH of the sandbox."""
    arguments: tuple[str, ...] = Field(default=(), strict=False)
    """Arguments of the program. The instruction comes on stdin, and is the file `{instruction_file}`."""
    env: dict[str, str] = {}
    settings: dict[Annotated[str, StringConstraints(pattern=SETTING)], Setting] = {}
    files: tuple[SettingsFile, ...] = Field(default=(), strict=False)
    mcp: Mcp | None = None
    skills_folder: HomePath | None = None
    instructions_file: HomePath | None = None
    client: Client | None = None
    """Without it the CLI is for sandboxes alone."""
    transcript: HomePath | None = None
    """The CLI's own record of the session; of a path with `*` the newest match is kept."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.install is None) == (self.program is None):
            raise ValueError("give exactly one of install and program")
        if self.mcp is not None:
            tables = [file.path for file in self.files if isinstance(file.content, dict)]
            if self.mcp.file not in tables:
                raise ValueError(f"mcp.file {self.mcp.file!r} must be the path of one of files")
        names = [*PLACEHOLDERS, *(f"settings.{name}" for name in self.settings)]
        names += [f"settings.{name}.{each}" for name, setting in self.settings.items() for each in setting.names]
        settings = [self.env, *(file.content for file in self.files)]
        check([*self.arguments, *settings], names)
        if self.client is not None:
            check(settings, [name for name in names if name not in OF_A_RUN])
        for transport, template in (self.mcp.templates if self.mcp else {}).items():
            check(template, SERVER_PLACEHOLDERS.get(transport, FIELDS[transport]))
        return self


def read(path: Path, kind: type[P]) -> P:
    """The preset or the client in a file. Raises InputError."""
    try:
        with path.open("rb") as file:
            text = file.read(SIZE_LIMIT + 1).decode()
        if len(text.encode()) > SIZE_LIMIT:
            raise InputError(str(path), f"over {SIZE_LIMIT} bytes", "is too large for a preset")
        return kind.model_validate(tomllib.loads(text))
    except OSError as error:
        raise InputError(str(path), path.name, f"can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(str(path), path.name, f"is no TOML: {error}") from None
    except ValidationError as error:
        first = field_errors.first_error(error)
        place = ".".join(map(str, first["loc"])) or f"the {kind.__name__.lower()}"
        reason = field_errors.reason(first)
        if first["type"] == "extra_forbidden":
            reason += f"; {field_errors.meant(str(first['loc'][-1]), field_errors.fields_at(kind, first['loc']))}"
        raise InputError(f"{path}: {place}", first["input"], reason) from None
