"""Values of a Harbor task in the form that a TaskRequest has for them, and which of them a template takes the place of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from polar.tasks import harbor_variables
from polar.tasks.harbor_folder import HarborTask
from polar.tasks.harbor_rules import DOCKERFILE, FILES, IMAGE, Rule
from polar.tasks.templates import at
from topics.types.runtime import UNKEPT, Seen

SEES = "runtime.verifier_sees"
MAIN = "main"
"""Harbor's name of the container in which the agent works."""


def user_name(user: str | int) -> str:
    """One of the names that a user has."""
    return "root" if str(user) == "0" else str(user)


class Values:
    """The values of one task, beside a template."""

    def __init__(self, task: HarborTask, template: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self._task, self._template, self._variables = task, template, variables

    def converted(self, name: str, value: Any) -> Any:
        """The value of a carried field, as JSON. Raises ValueError if it can't be had."""
        return CONVERTED.get(name, _unchanged)(self, value)

    def in_template(self, field: str) -> str | None:
        """The field, if the template has a value for it that is no mapping."""
        value = at(self._template, field)
        return None if value is None or isinstance(value, Mapping) else field

    def replacing(self, rule: Rule) -> str | None:
        """The template's field in the place of what the rule is about. A mapping of the template replaces nothing: it is merged."""
        return next(filter(None, map(self.in_template, rule.replaced_by)), None)

    @property
    def has_image(self) -> bool:
        """Also if the Dockerfile is refused: that is reason enough."""
        if self.in_template("runtime.image") is not None or self._task.config.environment.docker_image is not None:
            return True
        return self._task.has(DOCKERFILE) and self.replacing(FILES[DOCKERFILE]) is None

    def resolved(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables, with a value for each `${VAR}`. Raises ValueError."""
        return harbor_variables.resolved(env, self._variables)

    def servers(self, servers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """MCP servers, with a value for each `${VAR}` in their headers. Raises ValueError."""
        return [
            {
                **server,
                "headers": {
                    name: harbor_variables.filled(name, text, self._variables)
                    for name, text in server["headers"].items()
                },
            }
            if server.get("headers")
            else server
            for server in servers
        ]

    def image(self, name: str) -> str:
        """Raises ValueError if the runtime has no images."""
        backend = at(self._template, "runtime.backend") or "cell"
        if "image" in UNKEPT.get(backend, ()) and self.in_template("runtime.import_path") is None:
            raise ValueError(f"the runtime {backend} has no images; leave runtime.backend out of the template")
        return name

    def workdir(self, path: str) -> str:
        """Raises ValueError for an absolute folder without an image."""
        if PurePosixPath(path).is_absolute() and not self.has_image:
            raise ValueError(f"an absolute folder needs an image; {IMAGE}, or make it relative")
        return path

    def collect(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raises ValueError for commands of other services and users, and for commands that an evaluation apart from the run can't have."""
        if not self._task.config.verifier.is_separate and at(self._template, SEES) == Seen.WORKSPACE:
            raise ValueError(
                f"with {SEES} {Seen.WORKSPACE.value!r} there is no runtime.collect, whose commands may start programs of the run; leave "
                f"{SEES} out of the template, or give the verifier environment_mode 'separate'"
            )
        for one in commands:
            if (service := one.get("service", MAIN)) != MAIN:
                raise ValueError(f"a sandbox has no service {service!r} beside it; leave its commands out")
            if (user := one.get("user")) is not None and user_name(user) != self._users_name:
                raise ValueError(
                    f"every program of a sandbox is one user, and not {user}; leave user out if that user will do, or give it as agent.user"
                )
        return [
            {"command": one["command"]} | ({"timeout_s": one["timeout_sec"]} if "timeout_sec" in one else {})
            for one in commands
        ]

    @property
    def _users_name(self) -> str | None:
        """The name of the user that the task wants in the sandbox of the agent."""
        config = self._task.config
        users = (config.agent.user, None if config.verifier.is_separate else config.verifier.user)
        return next((user_name(user) for user in users if user is not None), None)

    def user(self, user: str | int) -> str:
        """Raises ValueError if the task wants another one as well."""
        if (name := user_name(user)) != self._users_name:
            raise ValueError(
                f"every program of a sandbox is one user, and agent.user is {self._users_name}; leave one of them out, or give the "
                "verifier environment_mode 'separate'"
            )
        return name

    def healthcheck(self, check: dict[str, Any]) -> dict[str, Any]:
        changed = {
            name.removesuffix("_sec") + "_s" if name.endswith("_sec") else name: value for name, value in check.items()
        }
        if "retries" in changed:
            changed["retries"] = max(1, changed["retries"])
        return changed


def _unchanged(_: Values, value: Any) -> Any:
    return value


CONVERTED: Mapping[str, Callable[[Values, Any], Any]] = {
    "environment.env": Values.resolved,
    "verifier.env": Values.resolved,
    "agent.user": Values.user,
    "verifier.user": Values.user,
    "verifier.collect": Values.collect,
    "environment.mcp_servers": Values.servers,
    "environment.docker_image": Values.image,
    "environment.workdir": Values.workdir,
    "environment.healthcheck": Values.healthcheck,
}
"""Carried fields whose values change or are checked."""
