"""`agent.mcp_servers`: servers of tools that the agent's CLI connects to by the Model Context Protocol.

The fields are those of `[[environment.mcp_servers]]` in Harbor's task.toml (schema 1.4), and `env`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from topics.types.allowed_hosts import AllowedHost, canonical_host, entry_for
from topics.types.parts import Argument, Environment, Part, is_http_url

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$"
"""Every CLI makes the names of tools from it, and an API allows 64 characters there."""
STDIO = "stdio"
ALLOWLIST = "allowlist"
"""The value of `Network` with a list of hosts."""
FIELDS = {STDIO: ("command", "args", "env"), "sse": ("url", "headers"), "streamable-http": ("url", "headers")}
"""The fields of each transport; the first is needed."""
SCHEME_PORTS = {"http": 80, "https": 443}


def _url(value: str) -> str:
    if not is_http_url(value):
        raise ValueError("must be an http or https URL, like https://tools.example/mcp")
    if urlsplit(value).username or urlsplit(value).password:
        raise ValueError("must hold no user or password; give a header: headers: {Authorization: …}")
    _host_and_port(value)
    return value


def _host_and_port(url: str) -> tuple[str, int]:
    """The canonical host and the port of a URL. Raises ValueError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return canonical_host(f"[{host}]" if ":" in host else host), parts.port or SCHEME_PORTS[parts.scheme]


HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,255}$")]
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[^\x00\r\n]*$")]


class McpServer(Part):
    """One server. `command` runs in the sandbox, as the agent; a `url` must be reachable from there."""

    name: Annotated[str, StringConstraints(pattern=NAME)]
    """What the agent's tools are named after."""
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    """`stdio` starts `command` in the sandbox; the others connect to `url`. docs/harness.md lists what each harness can."""
    command: Argument | None = Field(default=None, min_length=1)
    """A program: absolute, on the PATH of the harness, or relative to the folder where the harness starts."""
    args: list[Argument] = []
    """Arguments of `command`."""
    env: Environment = {}
    """Variables of the server, beside the few that the CLI passes on."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Where the server listens, as http or https, without user and password."""
    headers: dict[HeaderName, HeaderValue] = {}
    """Headers of every request to `url`."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        fields = FIELDS[self.transport]
        if not getattr(self, fields[0]):
            hint = "; for a command, give transport: stdio" if self.command else ""
            raise ValueError(f"{fields[0]} is needed where transport is {self.transport!r}{hint}")
        for name in ("command", "args", "env", "url", "headers"):
            if getattr(self, name) and name not in fields:
                raise ValueError(f"{name} doesn't go with transport {self.transport!r}; leave it out")
        return self


def require_own_names(servers: Sequence[McpServer]) -> None:
    """Raises ValueError for a name that two servers have."""
    for name, count in Counter(server.name for server in servers).items():
        if count > 1:
            raise ValueError(f"mcp_servers has {count} servers with the name {name!r}; give each its own")


def check_reachable(servers: Sequence[McpServer], policy: str, allowed_hosts: Sequence[str]) -> None:
    """Raises ValueError for a `url` that a sandbox whose `runtime.network` is `policy` can't reach."""
    entries = [AllowedHost.parse(entry) for entry in allowed_hosts]
    for server in servers:
        if server.url is None:
            continue
        host, port = _host_and_port(server.url)
        where = f"agent.mcp_servers: {server.name} is at {server.url}"
        if policy != ALLOWLIST:
            raise ValueError(
                f"{where}, and with runtime.network {policy!r} nothing but the model can be reached; set runtime.network: {ALLOWLIST} and "
                "runtime.allowed_hosts, or run the server in the sandbox (transport: stdio)"
            )
        if entry_for(entries, host, port) is None:
            raise ValueError(f"{where}; add {host}:{port} to runtime.allowed_hosts")
