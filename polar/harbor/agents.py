"""Harbor's installed agents, captured. Imports Harbor."""

from __future__ import annotations

from functools import cache
from typing import Any

from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig

from polar.harbor.captured import Captured
from topics.types.errors import InputError


@cache
def captured(name: str) -> type[Any]:
    """Harbor's agent `name`, with a session. Raises AttributeError, or InputError if the agent isn't one that Harbor installs."""
    if name not in AgentName.values():
        raise AttributeError(f"Harbor has no agent {name!r}; it has {', '.join(sorted(AgentName.values()))}")
    agent = AgentFactory.get_agent_class_from_config(AgentConfig(name=name))
    if not issubclass(agent, BaseInstalledAgent):
        reason = "only agents that Harbor installs in a trial's environment can be captured"
        raise InputError("agent", name, f"{reason}; oracle and nop are named without polar.harbor")
    return type(name, (Captured, agent), {"__module__": "polar.harbor"})
