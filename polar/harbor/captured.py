"""How an agent of Harbor's gets the model access of its trial's session.

Harbor makes an agent before its trial starts, and the plug-in opens the session later. So an agent takes the session's variables at its
set-up, as part of its own extra variables. Harbor's agents find their model's URL and key there, and Harbor removes the values of such keys
from a finished trial's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from topics.types.errors import NotReadyError

PLUGIN = "polar.harbor:Plugin"
environments: dict[UUID, dict[str, str]] = {}
"""Variables of each running trial's session, by the trial's id. The plug-in keeps them: Harbor makes plug-in and agents apart."""


class Captured:
    """A mixin before an agent class of Harbor's: `class Mine(Captured, MyInstalledAgent)`."""

    context_id: UUID
    """The trial's id. Harbor sets it."""
    _extra_env: dict[str, str]

    async def setup(self, environment: Any) -> None:
        """Take the session's variables, then set up the agent. Raises NotReadyError if the job runs without our plug-in."""
        if self.context_id not in environments:
            raise NotReadyError(f"this trial has no session: give `harbor run` the option `--plugin {PLUGIN}`")
        self._extra_env = {**self._extra_env, **environments[self.context_id]}
        await super().setup(environment)  # type: ignore[misc] # the agent's

    @classmethod
    def preflight(cls, kwargs: dict[str, Any] | None = None, env: Mapping[str, str] | None = None) -> None:
        """Check the options alone: credentials, which an agent's own check may require, come with the session."""
        cls.parse_options(kwargs, env)  # type: ignore[attr-defined] # the agent's
