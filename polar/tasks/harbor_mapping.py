"""Makes a TaskRequest of a Harbor task, by the rules of `harbor_rules`.

Invariant: nothing is ignored. Each field and each file with a meaning is carried, found to change nothing, replaced by the user's template,
or it refuses the task with a reason and a way out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any

from polar.tasks import dockerfile, harbor_variables, harbor_verifier
from polar.tasks.harbor_dockerfile import translated, workdir_of
from polar.tasks.harbor_folder import HarborTask, inside
from polar.tasks.harbor_rules import (
    COLLECT,
    DOCKERFILE,
    FIELDS,
    FILES,
    FOR_VERIFIER,
    HEALTHCHECK,
    HOSTS,
    IMAGE,
    MARK,
    PREPARE,
    SETUP_NETWORK,
    TARGETS,
    TESTS,
    VERIFIER,
    Outcome,
    Rule,
)
from polar.tasks.harbor_schema import Networked, NetworkMode
from polar.tasks.harbor_values import Values
from polar.tasks.task_sets import Member
from polar.tasks.templates import TASK_FOLDER, at, merged, nulls, put, with_sources
from topics.types import ids
from topics.types.errors import InputError
from topics.types.runtime import Network, Seen
from topics.types.task import TaskRequest, parse

TASK_ID = re.compile(ids.TASK_ID)
WORKDIR = "runtime.workdir"
ID_CHARS = 128
HASH_CHARS = 8
SET_BY_IMPORT = ("task_id", "instruction")
"""Fields that no template has."""
NETWORK_FIELDS = (".network_mode", ".allowed_hosts")
SHOWN_CHARS = 200
"""A longer value isn't in a report."""


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
    own_names: Mapping[str, str] = field(default_factory=dict)
    """The task's names of fields of the TaskRequest, for what TaskRequest refuses."""

    @property
    def refusals(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.outcome is Outcome.REFUSED)

    def all_refusals(self) -> tuple[Finding, ...]:
        """The refusals, or else what TaskRequest itself refuses."""
        request = self.request()
        return self.refusals or ((request,) if isinstance(request, Finding) else ())

    def request(self) -> TaskRequest | Finding:
        """The TaskRequest, or why the task can't be one: the first refusal, or what TaskRequest itself refuses."""
        if self.refusals:
            return self.refusals[0]
        try:
            return parse(self.body)
        except InputError as error:
            return Finding(self._own_name(error.field), _shown(self.body, error.field), Outcome.REFUSED, error.reason)

    def _own_name(self, place: str) -> str:
        found = next((one for one in self.own_names if f"{place}.".startswith(f"{one}.")), None)
        return place if found is None else self.own_names[found] + place.removeprefix(found)


def _shown(body: Mapping[str, Any], place: str) -> object:
    """The value at a place as TaskRequest names it; None for what is no single value, or is too long."""
    found: Any = body
    for name in place.split("."):
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return None if isinstance(found, Mapping) or len(str(found)) > SHOWN_CHARS else found


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
    for name in (*SET_BY_IMPORT, MARK):
        if (value := at(template, name)) is not None:
            raise InputError(f"--template: {name}", value, "comes from the task; leave it out")
    for name in nulls(template):
        if any(f"{target}.".startswith(f"{name}.") for target in TARGETS):
            raise InputError(
                f"--template: {name}", None, "null is no value; leave it out for the task's, or give a value"
            )


def solution_env(task: HarborTask, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of the reference solution, which a rollout doesn't get. Raises InputError for one without a value."""
    env = task.config.solution.env
    try:
        return harbor_variables.resolved(env, variables)
    except ValueError as error:
        raise InputError("solution.env", env, str(error)) from None


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
        self._member, self._task, self._template = member, task, template
        self._values = Values(task, template, variables)
        self._body: dict[str, Any] = {"task_id": task_id(member.name), "instruction": task.instruction}
        self._findings: list[Finding] = []
        self._translation: dockerfile.Translation | None = None
        """The translation of the task's own Dockerfile, once it is read."""
        self._is_separate = task.config.verifier.is_separate and self._values.in_template(FOR_VERIFIER) is None
        if member.dataset is not None:
            self._put(f"{MARK}.dataset", member.dataset)

    def mapped(self) -> Mapped:
        for name, value in _set_fields(self._task):
            self._field(name, value)
        self._policies()
        for name, rule in FILES.items():
            if self._task.has(name):
                self._file(name, rule)
        if self._is_separate:
            self._verifier()
        if at(self._body, COLLECT) is not None:
            self._time_to_collect()
        if (check := self._task.config.environment.healthcheck) and at(self._body, HEALTHCHECK) is not None:
            self._put("timeouts.init", self._task.config.environment.build_timeout_sec + check.longest_sec)
        if self._values.has_image:
            # Last, so a verifier's own sandbox shares the layers before it.
            self._put(PREPARE, [*(at(self._body, PREPARE) or ()), harbor_verifier.MAKE_PUBLISHED])
        own_names = harbor_verifier.artifact_names(self._task.config) if self._is_separate else {}
        return Mapped(merged(self._body, self._template), tuple(self._findings), own_names)

    def _field(self, name: str, value: Any) -> None:
        rule = FIELDS[name]
        if name.endswith(NETWORK_FIELDS):
            return  # several fields together are a policy: `_policies`
        if self._is_separate and name in harbor_verifier.OWN_FIELDS:
            return  # together they are a sandbox: `_verifier`
        if value in rule.neutral:
            self._found(name, value, Outcome.NEUTRAL, "what Polar does anyway")
        elif replacing := self._values.replacing(rule):
            self._found(name, value, Outcome.REPLACED, f"the template has {replacing}")
        elif name == "artifacts":
            reason = (
                "no files of a sandbox are kept after its verifier; leave them out, or give the verifier environment_mode "
                "'separate', which gets them"
            )
            self._found(name, value, Outcome.REFUSED, reason)
        elif rule.outcome is Outcome.CARRIED:
            self._carry(name, value, rule.becomes)
        else:
            self._found(name, value, rule.outcome, rule.becomes)

    def _carry(self, name: str, value: Any, target: str) -> None:
        try:
            self._put(target, self._values.converted(name, value))
        except ValueError as error:
            self._found(name, value, Outcome.REFUSED, str(error))
        else:
            self._found(name, value, Outcome.CARRIED, target)

    def _file(self, name: str, rule: Rule) -> None:
        if name == DOCKERFILE and self._task.config.environment.docker_image is not None:
            self._found(name, None, Outcome.NEUTRAL, "environment.docker_image is the image")
        elif replacing := self._values.replacing(rule):
            self._found(name, None, Outcome.REPLACED, f"the template has {replacing}")
        elif name == DOCKERFILE:
            self._dockerfile(rule.becomes)
        elif name == TESTS:
            if not self._is_separate:
                self._tests(rule.becomes)
        else:
            self._found(name, None, rule.outcome, rule.becomes)

    def _dockerfile(self, target: str) -> None:
        """What the task says of variables and of the working directory wins over its Dockerfile."""
        given = at(self._body, WORKDIR) if self._values.in_template(WORKDIR) is None else at(self._template, WORKDIR)
        try:
            found = translated(self._task, DOCKERFILE, given)
            image = self._values.image(found.image)
            workdir = workdir_of(found.workdir, given)
            self._translation = found
        except ValueError as error:
            self._found(DOCKERFILE, None, Outcome.REFUSED, str(error))
            return
        self._put("runtime.image", image)
        self._put(target, found.prepare)
        self._put("runtime.env", found.env | (at(self._body, "runtime.env") or {}))
        self._put("runtime.path", found.path)
        if workdir is not None:
            self._put(WORKDIR, workdir)
        self._found(DOCKERFILE, None, Outcome.CARRIED, f"{target}{self._with_network(found)}")

    def _with_network(self, found: dockerfile.Translation) -> str:
        """Give RUN a network, and say so."""
        if not found.has_run or self._values.in_template(SETUP_NETWORK) is not None:
            return ""
        self._put(SETUP_NETWORK, Network.HOST.value)
        return f": RUN has the network that Docker gives it, {SETUP_NETWORK}: {Network.HOST.value}"

    def _verifier(self) -> None:
        """Harbor makes the verifier's environment within the time that the task's own has."""
        config = self._task.config
        fields = [(name, value) for name, value in _set_fields(self._task) if name in harbor_verifier.OWN_FIELDS]
        try:
            own = self._own_sandbox()
            upload = harbor_verifier.upload_of_tests(self._task) if own.needs_upload else None
        except ValueError as error:
            for name, value in fields:
                self._found(name, value, Outcome.REFUSED, str(error))
            return
        if own.translation is not None:
            self._with_network(own.translation)
        if upload is not None:
            self._put("runtime.eval_prepare", upload)
        self._put(VERIFIER, own.spec)
        self._put(FOR_VERIFIER, "harbor")
        self._put("evaluator.config.timeout_s", config.verifier.timeout_sec)
        self._put("timeouts.evaluate", config.verifier.timeout_sec + config.environment.build_timeout_sec)
        for name, value in fields:
            self._found(name, value, Outcome.CARRIED, harbor_verifier.OWN_FIELDS[name])
        if others := harbor_verifier.overlapped_artifacts(config):
            self._found("artifacts", others, Outcome.NEUTRAL, harbor_verifier.OVERLAPPED)
        if self._task.has(TESTS):
            self._found(TESTS, None, Outcome.CARRIED, own.tests_in)

    def _time_to_collect(self) -> None:
        """Harbor's limits of the commands come on top of that of the tests."""
        verifier = self._task.config.verifier
        budget_s = at(self._body, "timeouts.evaluate") or verifier.timeout_sec
        self._put("timeouts.evaluate", budget_s + sum(one.timeout_sec for one in verifier.collect))
        self._put("evaluator.config.timeout_s", verifier.timeout_sec)

    def _own_sandbox(self) -> harbor_verifier.Own:
        """Raises ValueError."""
        env = self._values.resolved(harbor_verifier.environment_of(self._task.config).env)
        run = merged(self._body, self._template).get("runtime") if self._values.has_image else None
        harbor_verifier.check_kept(at(self._template, "runtime.backend") or "cell")
        return harbor_verifier.own_sandbox(self._task, env, run, self._translation)

    def _tests(self, target: str) -> None:
        """Harbor's own verifier sees all that the agent left in the container."""
        if not self._values.has_image:
            reason = f"without an image nothing lies at /tests; {IMAGE}, or an evaluator in the template"
            self._found(TESTS, None, Outcome.REFUSED, reason)
        elif self._values.in_template(target):
            reason = (
                f"the template's {target} takes the place of their upload; give {FOR_VERIFIER} in the template as well"
            )
            self._found(TESTS, None, Outcome.REFUSED, reason)
        else:
            try:
                self._put(target, harbor_verifier.upload_of_tests(self._task))
            except ValueError as error:
                self._found(TESTS, None, Outcome.REFUSED, str(error))
                return
            self._put(FOR_VERIFIER, "harbor")
            self._put("runtime.verifier_sees", Seen.EVERYTHING.value)
            self._found(TESTS, None, Outcome.CARRIED, target)

    def _policies(self) -> None:
        """The networks of the agent and of the verifier, and the one list of hosts that a session has."""
        config = self._task.config
        lists: dict[str, list[str]] = {}
        is_environments_needed = False
        for name, part, target, least in (
            ("agent", config.agent, "runtime.network", Network.PROXY_ONLY),
            ("verifier", config.verifier, "runtime.verifier_network", Network.NONE),
        ):
            place, decider = (name, part) if part.network_mode is not None else ("environment", config.environment)
            if name == "verifier" and decider is not part and config.verifier.environment is not None:
                place, decider = "verifier.environment", config.verifier.environment
            is_environments_needed |= decider is config.environment
            if replacing := self._values.replacing(FIELDS[f"{name}.network_mode"]) or self._values.in_template(target):
                self._policy(place, decider, Outcome.REPLACED, f"for the {name}, the template has {replacing}")
                continue
            policy = _policy(decider, least)
            self._put(target, policy.value)
            self._policy(place, decider, Outcome.CARRIED, f"{target}: {policy.value}")
            if policy is Network.ALLOWLIST and self._values.in_template(HOSTS) is None:
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
        if outcome is Outcome.CARRIED and self._values.in_template(HOSTS) is not None:
            outcome, becomes = Outcome.REPLACED, f"the template has {HOSTS}"
        if decider.allowed_hosts:
            self._found(f"{place}.allowed_hosts", decider.allowed_hosts, outcome, becomes)

    def _put(self, field: str, value: Any) -> None:
        put(self._body, field, value)

    def _found(self, name: str, value: Any, outcome: Outcome, becomes: str) -> None:
        self._findings.append(Finding(name, value, outcome, becomes))


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
