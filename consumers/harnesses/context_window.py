"""The size of the model's context in the settings of a harness.

A CLI compacts its conversation when it nears the size that its settings name. With a larger one than the engine's it never does, and the
engine refuses its calls. So a harness with the setting `context_window` gets the engine's length where the task sets none, and a setting
`max_tokens` that the task leaves out is at most a quarter of it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from consumers.harnesses.base import NoSettings, checked_settings
from consumers.runtimes.base import ModelAccess
from topics.environment import http_json, registry
from topics.types.agent import AgentSpec

WINDOW = "context_window"
ANSWER = "max_tokens"
PARTS = 4
"""Of the window, a default answer has one part: CLIs compact when what is left has no room for an answer, Qwen Code at seven tenths."""
ASK_S = 5.0
"""For the proxy's answer; it may have to ask the engine's servers, for which it takes 3 s."""


class _Model(msgspec.Struct):
    max_model_len: int | None = None


_decode = msgspec.json.Decoder(_Model).decode


def has_window(agent: AgentSpec) -> bool:
    """Whether the agent's harness has the setting. Raises InputError for an unknown harness."""
    return WINDOW in _defaults(agent)


def engines_context(model: ModelAccess) -> int | None:
    """Tokens that a prompt and its answer may have together, as the model's engine states; None: it doesn't, or no proxy answers in time.

    Waits at most `ASK_S`.
    """
    name = quote(model.model_name, errors="replace")
    try:
        answer = http_json.send(f"{model.proxy_url}/v1/models/{name}", token=model.key, timeout_s=ASK_S)
        return _decode(answer.body).max_model_len if answer.status == 200 else None
    except (http_json.NoAnswerError, msgspec.DecodeError):
        return None


def fitted(agent: AgentSpec, context: int | None) -> tuple[AgentSpec, str | None]:
    """The agent with sizes that fit an engine's context, and for people what is wrong with those that the task sets.

    `context`: as of `engines_context`. Raises InputError for bad settings.
    """
    defaults = _defaults(agent)
    is_set = WINDOW in agent.settings
    if WINDOW not in defaults or (context is None and not is_set):
        return agent, None
    chosen = checked_settings(agent, _settings_type(agent))
    window: int = getattr(chosen, WINDOW) if context is None or is_set else context
    settings = {**agent.settings, WINDOW: window}
    if ANSWER in defaults and ANSWER not in settings:
        settings[ANSWER] = max(1, min(defaults[ANSWER], window // PARTS))
    warning = None
    if context is not None and window > context:
        warning = (
            f"agent.settings.{WINDOW} is {window}, and the engine of model {agent.model_name!r:.100} takes {context} tokens: the harness"
            f" compacts too late, and the engine refuses its longer prompts; leave {WINDOW} out, or set at most {context}"
        )
    return agent.model_copy(update={"settings": settings}), warning


def _settings_type(agent: AgentSpec) -> type[msgspec.Struct]:
    """The struct of the harness's settings; one without fields for a harness of a user's that has none."""
    found = getattr(registry.load(registry.Kind.HARNESS, agent.name), "settings_type", None)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else NoSettings


def _defaults(agent: AgentSpec) -> dict[str, Any]:
    """The harness's settings, each with its default."""
    return {each.name: each.default for each in msgspec.structs.fields(_settings_type(agent))}
