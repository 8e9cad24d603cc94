"""The size of the model's context in the settings of a harness.

A CLI compacts its conversation when it nears the size that its settings name. With a larger one than the engine's it never does, and the
engine refuses its calls. So a harness with the setting `context_window` gets the engine's length where the task sets none, and a setting
`max_tokens` that the task leaves out is at most a quarter of it. Only settings whose default is a number are changed: a harness of a user's
may have settings of these names that mean something else.
"""

from __future__ import annotations

import asyncio
from typing import TypeGuard
from urllib.parse import quote

import msgspec

from consumers.harnesses.base import NoSettings, checked_settings
from consumers.runtimes.base import ModelAccess
from topics.environment import http_json, registry
from topics.types.agent import AgentSpec
from topics.types.errors import InputError

WINDOW = "context_window"
MAX_TOKENS = "max_tokens"
ANSWER_DIVISOR = 4
"""A default for `max_tokens` is at most the window divided by this. CLIs compact when the window has no room left for such an answer; Qwen
Code compacts at seven tenths of the window."""
TIMEOUT_S = 5.0
"""Time for the proxy's answer. The proxy may have to ask the engine's servers first, and allows them 3 s."""


class _Model(msgspec.Struct):
    max_model_len: int | None = None


_decode = msgspec.json.Decoder(_Model).decode


def has_window(agent: AgentSpec) -> bool:
    """Whether the agent's harness has the setting. Raises InputError for an unknown harness."""
    return WINDOW in _default_sizes(_settings_type(agent))


def engines_context(model: ModelAccess) -> int | None:
    """Tokens that a prompt and its answer may have together, as the model's engine states; None: it doesn't, or no proxy answers in time.

    `TIMEOUT_S` limits each wait for bytes of the proxy, not their sum: an answer that trickles in may take longer.
    """
    name = quote(model.model_name, errors="replace")
    try:
        answer = http_json.send(f"{model.proxy_url}/v1/models/{name}", token=model.key, timeout_s=TIMEOUT_S)
        return _decode(answer.body).max_model_len if answer.status == 200 else None
    except (http_json.NoAnswerError, msgspec.DecodeError):
        return None


async def engines_context_in_time(model: ModelAccess) -> int | None:
    """As `engines_context`, beside other work; None also if the whole answer takes longer than `TIMEOUT_S`."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.to_thread(engines_context, model)
    except TimeoutError:
        return None


def fitted(agent: AgentSpec, context: int | None) -> tuple[AgentSpec, str | None]:
    """The agent with sizes that fit an engine's context, and a warning for people about larger sizes that the task sets.

    `context`: as of `engines_context`. An agent whose harness refuses the task's settings, or the sizes that would fit, stays as it is.
    Raises InputError for an unknown harness.
    """
    settings_type = _settings_type(agent)
    defaults = _default_sizes(settings_type)
    if WINDOW not in defaults:
        return agent, None
    try:
        chosen = checked_settings(agent, settings_type)
    except InputError:  # the harness reports them
        return agent, None
    own = {name: getattr(chosen, name) for name in (WINDOW, MAX_TOKENS) if name in agent.settings}
    warning = None if context is None else _warning(agent, context, own)
    window = own.get(WINDOW, context)
    if not _is_size(window):
        return agent, warning
    sizes = {WINDOW: window}
    if MAX_TOKENS in defaults:
        sizes[MAX_TOKENS] = max(1, min(defaults[MAX_TOKENS], window // ANSWER_DIVISOR))
    sized = agent.model_copy(update={"settings": {**sizes, **agent.settings}})
    try:
        checked_settings(sized, settings_type)
    except InputError:
        return agent, warning
    return sized, warning


def _warning(agent: AgentSpec, context: int, own: dict[str, object]) -> str | None:
    """A message about each of the task's `own` sizes for which the engine's context is too short."""
    window, max_tokens = own.get(WINDOW), own.get(MAX_TOKENS)
    problems = []
    if _is_size(window) and window > context:
        problems.append(
            f"agent.settings.{WINDOW} is {window}, so the harness compacts too late, and the engine refuses its longer prompts: leave it"
            f" out, or set at most {context}"
        )
    if _is_size(max_tokens) and max_tokens >= context:
        problems.append(
            f"agent.settings.{MAX_TOKENS} is {max_tokens}, which leaves no room for a prompt: leave it out, or set less than {context}"
        )
    if not problems:
        return None
    engine = f"the engine of model {agent.model_name!r:.100} takes {context} tokens, a prompt and its answer together"
    return "; ".join([engine, *problems])


def _settings_type(agent: AgentSpec) -> type[msgspec.Struct]:
    """The struct of the harness's settings; one without fields for a harness of a user's that has none."""
    found = getattr(registry.load(registry.Kind.HARNESS, agent.name), "settings_type", None)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else NoSettings


def _default_sizes(settings_type: type[msgspec.Struct]) -> dict[str, int]:
    """The defaults of those settings that are numbers by default."""
    defaults = {each.name: each.default for each in msgspec.structs.fields(settings_type)}
    return {name: default for name, default in defaults.items() if _is_size(default)}


def _is_size(value: object) -> TypeGuard[int]:
    """Whether a setting's value may be a number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool)
