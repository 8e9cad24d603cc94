"""What each field and file of a Harbor task becomes in a TaskRequest.

Invariant: nothing is ignored. `FIELDS` has every field of the schema and `FILES` the files with a meaning; each is carried, found to
change nothing, replaced by the user's template, or it refuses the task with a reason and a way out. What Polar can't do yet is
`_unbuilt`, and nowhere else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address
from pathlib import PurePosixPath
from typing import Any

from polar.tasks.harbor_folder import HarborTask, inside
from polar.tasks.harbor_schema import Networked, NetworkMode
from polar.tasks.task_sets import Member
from polar.tasks.templates import TASK_FOLDER, at, merged, nulls, with_sources
from topics.types import ids
from topics.types.errors import InputError
from topics.types.task import UNKEPT, Network, Seen, TaskRequest, parse

VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
TASK_ID = re.compile(ids.TASK_ID)
ID_CHARS = 128
HASH_CHARS = 8
SET_BY_IMPORT = ("task_id", "instruction")
"""Fields that no template has."""
FOR_VERIFIER = "evaluator.strategy"
"""A template with this field has an evaluator in the place of the task's verifier."""
HOSTS = "runtime.allowed_hosts"
NETWORK_FIELDS = (".network_mode", ".allowed_hosts")
DOCKERFILE = "environment/Dockerfile"


class Outcome(StrEnum):
    CARRIED = "carried"
    NEUTRAL = "neutral"
    """Its value changes nothing: it is what Polar does anyway, or it concerns no rollout."""
    REPLACED = "replaced"
    """The template has something in its place."""
    REFUSED = "refused"


@dataclass(frozen=True)
class Finding:
    """The outcome for one field or file."""

    name: str
    """Dotted, as in `task.toml`; or the path of a file."""
    value: object
    """As JSON; None for a file."""
    outcome: Outcome
    becomes: str
    """The TaskRequest's field; for REFUSED why, and the way out; otherwise why that is right."""


@dataclass(frozen=True)
class Mapped:
    """A task's body, and how it came about."""

    body: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def refusals(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.outcome is Outcome.REFUSED)

    def request(self) -> TaskRequest | Finding:
        """The TaskRequest, or why the task can't be one: the first refusal, or what TaskRequest itself refuses."""
        if self.refusals:
            return self.refusals[0]
        try:
            return parse(self.body)
        except InputError as error:
            return Finding(error.field, error.value, Outcome.REFUSED, f"TaskRequest: {error.reason}")


@dataclass(frozen=True)
class Rule:
    outcome: Outcome
    becomes: str
    replaced_by: tuple[str, ...] = ()
    """Fields of a template that take its place, each by itself."""
    neutral: tuple[object, ...] = ()
    """Values that change nothing."""


def _carried(target: str, *replaced_by: str) -> Rule:
    return Rule(Outcome.CARRIED, target, replaced_by or (target,))


def _neutral(why: str) -> Rule:
    return Rule(Outcome.NEUTRAL, why)


def _unbuilt(what: str, *replaced_by: str, neutral: tuple[object, ...] = ()) -> Rule:
    """A rule for something that Polar can't do yet."""
    return Rule(Outcome.REFUSED, what, replaced_by, neutral)


_USERS = "every program of a session runs as the sandbox's one user; leave it out if that user will do"
_IMAGE = "set environment.docker_image, or give runtime.image in the template"
_MARK = "metadata.harbor"
TESTS = "tests"
FIELDS: Mapping[str, Rule] = {
    "schema_version": _neutral("a version that is read whole"),
    **{f"task.{name}": _carried(f"{_MARK}.task.{name}") for name in ("name", "version", "description", "authors", "keywords")},
    "metadata": _carried(f"{_MARK}.metadata"),
    "source": _carried(f"{_MARK}.source"),
    "agent.network_mode": _carried("runtime.network"),
    "agent.allowed_hosts": _carried(HOSTS, HOSTS, "runtime.network"),
    "agent.timeout_sec": _carried("timeouts.run"),
    "agent.user": _unbuilt(_USERS),
    "verifier.network_mode": _carried("runtime.verifier_network", FOR_VERIFIER),
    "verifier.allowed_hosts": _carried(HOSTS, HOSTS, FOR_VERIFIER),
    "verifier.timeout_sec": _carried("timeouts.evaluate", FOR_VERIFIER),
    "verifier.env": _carried("evaluator.env", FOR_VERIFIER),
    "verifier.user": _unbuilt(_USERS, FOR_VERIFIER),
    "verifier.environment_mode": _unbuilt(
        "no verifier has a sandbox of its own yet; set 'shared', or give an evaluator in the template",
        FOR_VERIFIER, neutral=("shared",),
    ),
    "verifier.environment": _unbuilt(
        "no verifier has a sandbox of its own yet; leave it out, or give an evaluator in the template", FOR_VERIFIER
    ),
    "verifier.collect": _unbuilt(
        "no command runs between the agent and the verifier; give an evaluator in the template that runs it", FOR_VERIFIER
    ),
    "environment.network_mode": _carried("runtime.network"),
    "environment.allowed_hosts": _carried(HOSTS, HOSTS, "runtime.network"),
    "environment.build_timeout_sec": _neutral("no image is built: environment/Dockerfile says what that means"),
    "environment.docker_image": _carried("runtime.image"),
    "environment.os": _unbuilt("sandboxes run Linux alone", neutral=("linux",)),
    "environment.cpus": _carried("runtime.cpus"),
    "environment.memory_mb": _carried("runtime.memory_mb"),
    "environment.storage_mb": _carried("runtime.storage_mb"),
    "environment.gpus": _unbuilt("no sandbox has GPUs yet", neutral=(0,)),
    "environment.gpu_types": _unbuilt("no sandbox has GPUs yet"),
    "environment.tpu": _unbuilt("no sandbox has TPUs"),
    "environment.mcp_servers": _unbuilt("harnesses get no MCP servers yet; the agent would lack tools of the task"),
    "environment.env": _carried("runtime.env"),
    "environment.skills_dir": _unbuilt("harnesses get no skills yet; the agent would lack knowledge of the task"),
    "environment.healthcheck": _unbuilt("no service of a sandbox is started before the agent, so nothing can become ready"),
    "environment.workdir": _carried("runtime.workdir"),
    "solution.env": _neutral("for the reference solution alone, which no rollout sees"),
    "multi_step_reward_strategy": _unbuilt("a session has one instruction; there are no steps yet"),
    "steps": _unbuilt("a session has one instruction; there are no steps yet"),
    "artifacts": _unbuilt(
        "no files of a sandbox are collected for a verifier or after it; give an evaluator in the template", FOR_VERIFIER
    ),
}  # fmt: skip
FILES: Mapping[str, Rule] = {
    "environment/docker-compose.yaml": _unbuilt("a sandbox has no other services beside it"),
    DOCKERFILE: _unbuilt(
        "no image is built yet; give runtime.prepare in the template, with what the task needs",
        "runtime.image",
        "runtime.prepare",
    ),
    TESTS: _carried("runtime.eval_prepare", FOR_VERIFIER),
    "solution": _neutral("for the reference solution alone, which no rollout sees"),
    "trajectory.json": _unbuilt("no session begins with an earlier conversation"),
    ".harborignore": _unbuilt("its rules aren't applied to uploads yet; delete the files that it names, and itself"),
}

_RULES = (*FIELDS.values(), *FILES.values())
TARGETS = {rule.becomes for rule in _RULES if rule.outcome is Outcome.CARRIED}.union(
    *(rule.replaced_by for rule in _RULES)
)
"""What a task sets in a TaskRequest, and what a template can have in the place of a field or file."""


def mapped(
    member: Member, task: HarborTask, template: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> Mapped:
    """A task as the body of a TaskRequest. `variables`: values for `${VAR}`; none come from the environment of this process.

    Raises InputError as `check_template`, and for a source outside of the task.
    """
    check_template(template)

    def place(source: str) -> str:
        if not source.startswith(TASK_FOLDER):
            return source
        return str(inside(task.folder, source.removeprefix(TASK_FOLDER)).absolute())

    return _Mapping(member, task, with_sources(template, place), variables or {}).mapped()


def check_template(template: Mapping[str, Any]) -> None:
    """Raises InputError for fields of SET_BY_IMPORT, for `metadata.harbor`, and for null in the place of what a task can set."""
    for field in (*SET_BY_IMPORT, _MARK):
        if (value := at(template, field)) is not None:
            raise InputError(f"--template: {field}", value, "comes from the task; leave it out")
    for field in nulls(template):
        if any(f"{target}.".startswith(f"{field}.") for target in TARGETS):
            raise InputError(
                f"--template: {field}", None, "null is no value; leave it out for the task's, or give a value"
            )


def task_id(name: str) -> str:
    """A task's id: its name if that may be one. Otherwise what may stay of it, with a hash, so that different names have different ids."""
    if TASK_ID.fullmatch(name):
        return name
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[: ID_CHARS - HASH_CHARS - 1] or "task"
    return f"{stem}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:HASH_CHARS]}"


class _Mapping:
    """The mapping of one task."""

    def __init__(
        self, member: Member, task: HarborTask, template: Mapping[str, Any], variables: Mapping[str, str]
    ) -> None:
        self._member, self._task, self._template, self._variables = member, task, template, variables
        self._body: dict[str, Any] = {"task_id": task_id(member.name), "instruction": task.instruction}
        self._findings: list[Finding] = []
        if member.dataset is not None:
            self._put(f"{_MARK}.dataset", member.dataset)

    def mapped(self) -> Mapped:
        for name, value in _set_fields(self._task):
            self._field(name, value)
        self._policies()
        for name, rule in FILES.items():
            if self._task.has(name):
                self._file(name, rule)
        return Mapped(merged(self._body, self._template), tuple(self._findings))

    def _field(self, name: str, value: Any) -> None:
        rule = FIELDS[name]
        if name.endswith(NETWORK_FIELDS):
            return  # several fields together are a policy: `_policies`
        if value in rule.neutral:
            self._found(name, value, Outcome.NEUTRAL, "what Polar does anyway")
        elif replacing := self._replacing(rule):
            self._found(name, value, Outcome.REPLACED, f"the template has {replacing}")
        elif rule.outcome is Outcome.CARRIED:
            self._carry(name, value, rule.becomes)
        else:
            self._found(name, value, rule.outcome, rule.becomes)

    def _carry(self, name: str, value: Any, target: str) -> None:
        try:
            self._put(target, CONVERTED.get(name, _unchanged)(self, value))
        except ValueError as error:
            self._found(name, value, Outcome.REFUSED, str(error))
        else:
            self._found(name, value, Outcome.CARRIED, target)

    def _file(self, name: str, rule: Rule) -> None:
        if name == DOCKERFILE and self._task.config.environment.docker_image is not None:
            self._found(name, None, Outcome.NEUTRAL, "environment.docker_image is the image")
        elif replacing := self._replacing(rule):
            self._found(name, None, Outcome.REPLACED, f"the template has {replacing}")
        elif name == TESTS:
            self._tests(rule.becomes)
        else:
            self._found(name, None, rule.outcome, rule.becomes)

    def _tests(self, target: str) -> None:
        """Harbor's own verifier sees all that the agent left in the container."""
        if not self._has_image:
            reason = f"without an image nothing lies at /tests; {_IMAGE}, or an evaluator in the template"
            self._found(TESTS, None, Outcome.REFUSED, reason)
        elif self._in_template(target):
            reason = (
                f"the template's {target} takes the place of their upload; give {FOR_VERIFIER} in the template as well"
            )
            self._found(TESTS, None, Outcome.REFUSED, reason)
        else:
            upload = {"type": "upload_dir", "source": str((self._task.folder / TESTS).absolute()), "target": "/tests"}
            # Files that the agent left there aren't tests.
            self._put(target, [{"type": "exec", "command": "rm -rf /tests", "cwd": "/"}, upload])
            self._put(FOR_VERIFIER, "harbor")
            self._put("runtime.verifier_sees", Seen.EVERYTHING.value)
            self._found(TESTS, None, Outcome.CARRIED, target)

    @property
    def _has_image(self) -> bool:
        return self._in_template("runtime.image") is not None or self._task.config.environment.docker_image is not None

    def _policies(self) -> None:
        """The networks of the agent and of the verifier, and the one list of hosts that a session has."""
        config = self._task.config
        lists: dict[str, list[str]] = {}
        is_environments_needed = False
        for name, part, target, least in (
            ("agent", config.agent, "runtime.network", Network.PROXY_ONLY),
            ("verifier", config.verifier, "runtime.verifier_network", Network.NONE),
        ):
            place, decider = ("environment", config.environment) if part.network_mode is None else (name, part)
            is_environments_needed |= decider is config.environment
            if replacing := self._replacing(FIELDS[f"{name}.network_mode"]) or self._in_template(target):
                self._policy(place, decider, Outcome.REPLACED, f"for the {name}, the template has {replacing}")
                continue
            policy = _policy(decider, least)
            self._put(target, policy.value)
            self._policy(place, decider, Outcome.CARRIED, f"{target}: {policy.value}")
            if policy is Network.ALLOWLIST and self._in_template(HOSTS) is None:
                lists[place] = sorted({_host(host) for host in decider.allowed_hosts or ()})
        if not is_environments_needed and config.environment.network_mode is not None:
            why = "the agent and the verifier have a policy each"
            self._policy("environment", config.environment, Outcome.NEUTRAL, why)
        for place, hosts in lists.items():
            if hosts != next(iter(lists.values())):
                reason = "a session has one list of hosts; give the agent and the verifier the same"
                self._found(f"{place}.allowed_hosts", hosts, Outcome.REFUSED, reason)
            self._put(HOSTS, hosts)

    def _policy(self, place: str, decider: Networked, outcome: Outcome, becomes: str) -> None:
        self._found(f"{place}.network_mode", (decider.network_mode or NetworkMode.PUBLIC).value, outcome, becomes)
        if outcome is Outcome.CARRIED and self._in_template(HOSTS) is not None:
            outcome, becomes = Outcome.REPLACED, f"the template has {HOSTS}"
        if decider.allowed_hosts:
            self._found(f"{place}.allowed_hosts", decider.allowed_hosts, outcome, becomes)

    def _replacing(self, rule: Rule) -> str | None:
        """The template's field in the place of what the rule is about. A mapping of the template replaces nothing: it is merged."""
        return next(filter(None, map(self._in_template, rule.replaced_by)), None)

    def _in_template(self, field: str) -> str | None:
        """The field, if the template has a value for it that is no mapping."""
        value = at(self._template, field)
        return None if value is None or isinstance(value, Mapping) else field

    def _put(self, field: str, value: Any) -> None:
        *path, last = field.split(".")
        part = self._body
        for name in path:
            part = part.setdefault(name, {})
        part[last] = value

    def _found(self, name: str, value: Any, outcome: Outcome, becomes: str) -> None:
        self._findings.append(Finding(name, value, outcome, becomes))

    def resolved(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables, with a value for each `${VAR}`. Raises ValueError."""
        return {name: self._value(name, text) for name, text in env.items()}

    def _value(self, name: str, text: str) -> str:
        found = VARIABLE.fullmatch(text)
        if found is None:
            return text
        value = self._variables.get(found[1], found[2])
        if value is None:
            raise ValueError(f"{name} needs a value for ${{{found[1]}}}; give it by --env {found[1]}")
        return value

    def image(self, name: str) -> str:
        """Raises ValueError if the runtime has no images."""
        backend = at(self._template, "runtime.backend") or "cell"
        if "image" in UNKEPT.get(backend, ()) and self._in_template("runtime.import_path") is None:
            raise ValueError(f"the runtime {backend} has no images; leave runtime.backend out of the template")
        return name

    def workdir(self, path: str) -> str:
        """Raises ValueError for an absolute folder without an image."""
        if PurePosixPath(path).is_absolute() and not self._has_image:
            raise ValueError(f"an absolute folder needs an image; {_IMAGE}, or make it relative")
        return path


def _unchanged(_: _Mapping, value: Any) -> Any:
    return value


CONVERTED: Mapping[str, Callable[[_Mapping, Any], Any]] = {
    "environment.env": _Mapping.resolved,
    "verifier.env": _Mapping.resolved,
    "environment.docker_image": _Mapping.image,
    "environment.workdir": _Mapping.workdir,
}
"""Carried fields whose values change or are checked."""


def _policy(decider: Networked, least: Network) -> Network:
    """`least`: what has no network."""
    match decider.network_mode:
        case NetworkMode.NO_NETWORK:
            return least
        case NetworkMode.ALLOWLIST:
            return Network.ALLOWLIST if decider.allowed_hosts else least
        case _:
            return Network.HOST


def _host(host: str) -> str:
    """Harbor writes IPv6 addresses without brackets."""
    try:
        return f"[{IPv6Address(host)}]"
    except ValueError:
        return host.strip().lower()


def _set_fields(task: HarborTask) -> Iterator[tuple[str, Any]]:
    """The fields that the task sets to more than nothing, with their values as JSON."""
    body = task.config.model_dump(mode="json", exclude_unset=True)
    for name in FIELDS:
        value = at(body, name)
        if value not in (None, "", [], {}):
            yield name, value
