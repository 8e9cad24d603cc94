"""Polar behind Harbor: `harbor run` with our proxy and log. Each trial is an opened session, and the trial's reward is the trajectory's.

    harbor run --plugin polar.harbor:Plugin --agent polar.harbor:codex --model openai/any --path TASKS

`polar.harbor:NAME` is Harbor's own installed agent NAME, with the URLs and the key of its trial's session. Harbor imports this package, so
one environment has both. docs/harbor.md has the options.
"""

from __future__ import annotations

from typing import Any

from polar.harbor.plugin import Plugin as Plugin


def __getattr__(name: str) -> type[Any]:
    """Harbor's agent of this name, as `--agent polar.harbor:NAME` asks for it.

    Raises AttributeError for other names, InputError for an agent of Harbor's that can't be captured.
    """
    if name.startswith("__"):  # Python's own questions, such as for `__wrapped__`
        raise AttributeError(name)
    try:
        from polar.harbor.agents import captured
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "harbor":
            raise
        message = f"polar.harbor.{name} needs Harbor: pip install 'harbor>=0.24,<0.25', in Python 3.12 or newer"
        raise ModuleNotFoundError(message, name="harbor") from error
    return captured(name)
