"""Polar: token-faithful rollouts of real coding agents, on a durable log.

All public names are here and in `polar.trainer`, and are imported when they are first used. A trainer's environment needs no extra. The
names for plug-ins (harnesses, builders, evaluators) are for the workers' environment.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumers.builders.base import Builder, BuiltFrom, refuse_unknown
    from consumers.evaluators.base import Case, EvaluationError, Evaluator, Verdict
    from consumers.harnesses.base import Harness, Launch, checked_settings
    from consumers.runtimes.base import ModelAccess, Runtime
    from consumers.token_tree.assembly import trace as make_trace
    from consumers.token_tree.assembly import trajectory as make_trajectory
    from consumers.token_tree.tree import grow as grow_tree
    from polar.agents import AgentResult
    from polar.client import Client
    from polar.fleet import (
        DrainTimeoutError,
        Fleet,
        FleetError,
        FleetStatus,
        Pause,
        PausedByOtherError,
        PauseLostError,
        PauseReport,
        PauseTimeoutError,
        Publication,
    )
    from polar.sessions import Session, SessionRefusedError
    from polar.table import SessionTable, TaskRefusedError
    from polar.trainer.consumer import TrajectoryConsumer
    from polar.webhooks import WebhookSignatureError, verify_webhook
    from topics.environment.settings import Settings
    from topics.environment.settings import load as load_settings
    from topics.types.completion import Completion
    from topics.types.errors import InputError, NotReadyError
    from topics.types.session import SessionState, Status
    from topics.types.task import TaskRequest
    from topics.types.task import parse as parse_task
    from topics.types.trajectory import ROOT, Trace, Trajectory

    __version__: str

_NAMES = {
    "consumers.builders.base": "Builder BuiltFrom refuse_unknown",
    "consumers.evaluators.base": "Case EvaluationError Evaluator Verdict",
    "consumers.harnesses.base": "Harness Launch checked_settings",
    "consumers.runtimes.base": "ModelAccess Runtime",
    "consumers.token_tree.assembly": "make_trace make_trajectory",
    "consumers.token_tree.tree": "grow_tree",
    "polar.agents": "AgentResult",
    "polar.client": "Client",
    "polar.fleet": "DrainTimeoutError Fleet FleetError FleetStatus Pause PauseLostError PauseReport PauseTimeoutError PausedByOtherError "
    "Publication",
    "polar.sessions": "Session SessionRefusedError",
    "polar.table": "SessionTable TaskRefusedError",
    "polar.trainer.consumer": "TrajectoryConsumer",
    "polar.webhooks": "WebhookSignatureError verify_webhook",
    "topics.environment.settings": "Settings load_settings",
    "topics.types.completion": "Completion",
    "topics.types.errors": "InputError NotReadyError",
    "topics.types.session": "SessionState Status",
    "topics.types.task": "TaskRequest parse_task",
    "topics.types.trajectory": "ROOT Trace Trajectory",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
_ALIASES = {
    "grow_tree": "grow",
    "load_settings": "load",
    "make_trace": "trace",
    "make_trajectory": "trajectory",
    "parse_task": "parse",
}

__all__ = [
    "ROOT", "AgentResult", "Builder", "BuiltFrom", "Case", "Client", "Completion", "DrainTimeoutError", "EvaluationError",
    "Evaluator", "Fleet", "FleetError", "FleetStatus", "Harness", "InputError", "Launch", "ModelAccess",
    "NotReadyError", "Pause", "PauseLostError", "PauseReport", "PauseTimeoutError", "PausedByOtherError",
    "Publication",    "Runtime", "Session", "SessionRefusedError", "SessionState", "SessionTable", "Settings", "Status",
    "TaskRefusedError", "TaskRequest", "Trace", "Trajectory", "TrajectoryConsumer", "Verdict",
    "WebhookSignatureError", "checked_settings", "grow_tree", "load_settings", "make_trace", "make_trajectory", "parse_task",
    "refuse_unknown", "verify_webhook",
]  # fmt: skip


def require_own_package(name: str) -> None:
    """Raise ImportError if `import name` finds another program's module instead of Polar's top-level package.

    The wheel installs the top-level packages `topics`, `proxy`, `consumers` and `analytics`. Python has one module for each name, and the
    folder of the running script comes first on its path, so a user's `topics.py` there can't be kept apart from Polar's package.
    """
    own = Path(__file__).parents[1] / name / "__init__.py"
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None and own.exists() and not own.samefile(spec.origin):
        raise ImportError(
            f"{spec.origin} hides Polar's own package {name!r} ({own.parent}): rename that file, or move it out of the folder of the "
            "running script and out of PYTHONPATH",
            name=name,
            path=spec.origin,
        )


require_own_package("topics")


if not TYPE_CHECKING:  # a type checker reports unknown names itself

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: a Kafka client takes as long to import as everything else together."""
        if name == "__version__":
            from importlib.metadata import version  # takes as long to import as the rest of this module

            return version("polar-rollouts")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(__all__)}")
        module = _MODULE_OF[name]
        if not module.startswith(("polar", "topics")):
            require_own_package(module.partition(".")[0])
        return getattr(import_module(module), _ALIASES.get(name, name))
