"""What becomes of each field and file of a Harbor task.

`FIELDS` has every field of the schema and `FILES` the files with a meaning. What Polar can't do yet is `_unbuilt`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

FOR_VERIFIER = "evaluator.strategy"
"""A template with this field has an evaluator in the place of the task's verifier."""
HOSTS = "runtime.allowed_hosts"
VERIFIER = "runtime.verifier"
USER = "runtime.user"
COLLECT = "runtime.collect"
PREPARE = "runtime.prepare"
HEALTHCHECK = "runtime.healthcheck"
DOCKERFILE = "environment/Dockerfile"
SETUP_NETWORK = "runtime.setup_network"


class Outcome(StrEnum):
    CARRIED = "carried"
    NEUTRAL = "neutral"
    """Its value changes nothing: it is what Polar does anyway, or it concerns no rollout."""
    REPLACED = "replaced"
    """The template has something in its place."""
    REFUSED = "refused"


@dataclass(frozen=True)
class Rule:
    outcome: Outcome
    becomes: str
    replaced_by: tuple[str, ...] = ()
    """Fields of a template that take its place, each by itself."""
    neutral: tuple[object, ...] = ()
    """Values that change nothing."""


def _carried(target: str, *replaced_by: str, neutral: tuple[object, ...] = ()) -> Rule:
    return Rule(Outcome.CARRIED, target, replaced_by or (target,), neutral)


def _neutral(why: str) -> Rule:
    return Rule(Outcome.NEUTRAL, why)


def _unbuilt(what: str, *replaced_by: str, neutral: tuple[object, ...] = ()) -> Rule:
    """A rule for something that Polar can't do yet. If no template's field takes its place, the task can only be left out."""
    becomes = what if replaced_by else f"{what}; leave the task out with --skip-refused"
    return Rule(Outcome.REFUSED, becomes, replaced_by, neutral)


IMAGE = "give the task environment.docker_image or a Dockerfile, or give runtime.image in the template"
MARK = "metadata.harbor"
TESTS = "tests"
FIELDS: Mapping[str, Rule] = {
    "schema_version": _neutral("a version that is read whole"),
    **{f"task.{name}": _carried(f"{MARK}.task.{name}") for name in ("name", "version", "description", "authors", "keywords")},
    "metadata": _carried(f"{MARK}.metadata"),
    "source": _carried(f"{MARK}.source"),
    "agent.network_mode": _carried("runtime.network"),
    "agent.allowed_hosts": _carried(HOSTS, HOSTS, "runtime.network"),
    "agent.timeout_sec": _carried("timeouts.run"),
    "agent.user": _carried(USER),
    "verifier.network_mode": _carried("runtime.verifier_network", FOR_VERIFIER),
    "verifier.allowed_hosts": _carried(HOSTS, HOSTS, FOR_VERIFIER),
    "verifier.timeout_sec": _carried("timeouts.evaluate", FOR_VERIFIER),
    "verifier.env": _carried("evaluator.env", FOR_VERIFIER),
    "verifier.user": _carried(USER, USER, FOR_VERIFIER),
    "verifier.environment_mode": _carried(VERIFIER, FOR_VERIFIER, neutral=("shared",)),
    "verifier.environment": _carried(VERIFIER, FOR_VERIFIER),
    "verifier.collect": _carried(COLLECT, COLLECT, FOR_VERIFIER),
    "environment.network_mode": _carried("runtime.network"),
    "environment.allowed_hosts": _carried(HOSTS, HOSTS, "runtime.network"),
    "environment.build_timeout_sec": _carried("timeouts.init"),
    "environment.docker_image": _carried("runtime.image"),
    "environment.os": _unbuilt("sandboxes run Linux alone", neutral=("linux",)),
    "environment.cpus": _carried("runtime.cpus"),
    "environment.memory_mb": _carried("runtime.memory_mb"),
    "environment.storage_mb": _carried("runtime.storage_mb"),
    "environment.gpus": _carried("runtime.gpus"),
    "environment.gpu_types": _unbuilt("no sandbox chooses GPUs by type; name a pool that has them in the template", "runtime.pool"),
    "environment.tpu": _unbuilt("no sandbox has TPUs"),
    "environment.mcp_servers": _carried("agent.mcp_servers"),
    "environment.env": _carried("runtime.env"),
    "environment.skills_dir": _carried("agent.skills_path"),
    "environment.healthcheck": _carried(HEALTHCHECK),
    "environment.workdir": _carried("runtime.workdir"),
    "solution.env": _neutral("for the reference solution alone, which no rollout sees"),
    "multi_step_reward_strategy": _unbuilt("a session has one instruction; there are no steps yet"),
    "steps": _unbuilt("a session has one instruction; there are no steps yet"),
    "artifacts": _carried(f"{VERIFIER}.artifacts", FOR_VERIFIER),
}  # fmt: skip
FILES: Mapping[str, Rule] = {
    "environment/docker-compose.yaml": _unbuilt("a sandbox has no other services beside it"),
    DOCKERFILE: _carried(PREPARE, "runtime.image", PREPARE),
    TESTS: _carried("runtime.eval_prepare", FOR_VERIFIER),
    "solution": _neutral("for the reference solution alone, which no rollout sees"),
    "trajectory.json": _unbuilt("no session begins with an earlier conversation"),
    ".harborignore": _neutral("Harbor applies those in tests and solution alone"),
}

_RULES = (*FIELDS.values(), *FILES.values())
TARGETS = {rule.becomes for rule in _RULES if rule.outcome is Outcome.CARRIED}.union(
    *(rule.replaced_by for rule in _RULES), ("runtime.path", SETUP_NETWORK)
)
"""What a task sets in a TaskRequest, and what a template can have in the place of a field or file."""
