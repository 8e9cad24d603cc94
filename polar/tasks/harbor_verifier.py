"""Maps a verifier with an environment of its own to `runtime.verifier`.

As in Harbor (0.26, models/task/verifier_mode.py): its environment is `verifier.environment`, or a copy of the task's. Its image is
`verifier.environment.docker_image`, or `tests/Dockerfile` says how it is made; then the tests lie in it. Otherwise it is the task's image,
and the tests are uploaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from polar.tasks import ignore_rules
from polar.tasks.dockerfile import Translation
from polar.tasks.harbor_dockerfile import translated, workdir_of
from polar.tasks.harbor_folder import HarborTask
from polar.tasks.harbor_rules import FIELDS, FILES, IMAGE, TESTS, VERIFIER, Outcome
from polar.tasks.harbor_schema import Artifact, Config, Environment
from polar.tasks.harbor_values import MAIN, user_name
from topics.types.runtime import UNKEPT

OWN_FIELDS = {
    "verifier.environment_mode": VERIFIER,
    "verifier.environment": VERIFIER,
    "verifier.user": f"{VERIFIER}.user",
    "artifacts": f"{VERIFIER}.artifacts",
}
"""Fields of a `task.toml` that are about it, and what they become."""
OVERLAPPED = "overlap an artifact before them, which counts, as in Harbor; /logs/artifacts is always the first"
DOCKERFILE = "tests/Dockerfile"
COMPOSE = "tests/docker-compose.yaml"
PUBLISHED = "/logs/artifacts"
"""A folder that Harbor always takes along, and that its containers have."""
MAKE_PUBLISHED = {"type": "exec", "command": f"mkdir -p {PUBLISHED} || true", "cwd": "/"}
"""An action, as JSON. In containers of Docker, the image's user may be unable to make it."""
_LIMITS = ("cpus", "memory_mb", "storage_mb", "gpus")


@dataclass(frozen=True)
class Own:
    """A verifier's own sandbox."""

    spec: dict[str, Any]
    """`runtime.verifier`, as JSON."""
    tests_in: str
    """The field that brings the tests."""
    translation: Translation | None = None
    """The translation of the verifier's own Dockerfile, if it has one."""

    @property
    def needs_upload(self) -> bool:
        """Whether the tests aren't in its image."""
        return self.tests_in == "runtime.eval_prepare"


def environment_of(config: Config) -> Environment:
    return config.verifier.environment or config.environment


def check_kept(backend: str) -> None:
    """Raises ValueError if the runtime has no sandbox for a verifier."""
    if "verifier" in UNKEPT.get(backend, ()):
        raise ValueError(
            f"the runtime {backend} has no sandbox for a verifier; leave runtime.backend out of the template"
        )


def upload_of_tests(task: HarborTask) -> list[dict[str, Any]]:
    """Actions, as JSON. Files that lie at /tests before, perhaps the agent's, aren't tests. Raises ValueError."""
    return [
        {"type": "exec", "command": "rm -rf /tests", "cwd": "/"},
        *ignore_rules.of_task(task, TESTS, "test.sh", "/tests"),
    ]


def own_sandbox(
    task: HarborTask, env: Mapping[str, str], run: Mapping[str, Any] | None, translation: Translation | None
) -> Own:
    """`env`: the environment's variables, with values. `run`: the task's `runtime`; None: it has no image. `translation`: of the task's own
    Dockerfile. Raises ValueError for what can't be had."""
    environment = environment_of(task.config)
    spec = _limits(environment) | {"env": dict(env), "artifacts": _artifacts(task.config)}
    if environment.workdir is not None:
        spec["workdir"] = environment.workdir
    if (user := task.config.verifier.user) is not None:
        spec["user"] = user_name(user)
    if task.config.verifier.environment is not None and environment.docker_image is not None:
        return Own(spec | {"image": environment.docker_image}, f"{VERIFIER}.image")
    if task.has(COMPOSE):
        raise ValueError(f"{COMPOSE}: {FILES['environment/docker-compose.yaml'].becomes}")
    if task.has(DOCKERFILE):
        found = translated(task, DOCKERFILE, environment.workdir)
        made = _made_by(found, spec) | {"image": found.image, "prepare": found.prepare}
        return Own(made, f"{VERIFIER}.prepare", found)
    if run is None:
        raise ValueError(f"without an image nothing lies at /tests; {IMAGE}, or an evaluator in the template")
    if translation is not None:
        spec = _made_by(translation, spec)
    return Own(spec | {"image": run.get("image"), "prepare": run.get("prepare", [])}, "runtime.eval_prepare")


def _limits(environment: Environment) -> dict[str, Any]:
    for name in Environment.model_fields:
        rule, value = FIELDS[f"environment.{name}"], getattr(environment, name)
        if rule.outcome is Outcome.REFUSED and value and value not in rule.neutral:
            raise ValueError(f"{name}: {rule.becomes}")
    return {name: value for name in _LIMITS if (value := getattr(environment, name)) is not None}


def _artifacts(config: Config) -> list[str | dict[str, Any]]:
    """Artifacts, as JSON. Raises ValueError."""
    made: list[str | dict[str, Any]] = []
    for _, one in _counted(config)[0]:
        if one.service not in (None, MAIN):
            raise ValueError(
                f"{one.source}: a sandbox has no service {one.service!r} beside it; leave the artifact out"
            )
        made.append({"path": one.source, "exclude": one.exclude} if one.exclude else one.source)
    return made


def artifact_names(config: Config) -> dict[str, str]:
    """The names that the task has for its artifacts, by those of the TaskRequest."""
    found = {}
    for place, (name, _) in enumerate(_counted(config)[0]):
        found[f"{VERIFIER}.artifacts.{place}.path"] = name
        found[f"{VERIFIER}.artifacts.{place}"] = name.removesuffix(".source")
    return found


def overlapped_artifacts(config: Config) -> list[str]:
    """The artifacts that are left out: see OVERLAPPED."""
    return [one.source for one in _counted(config)[1]]


def _counted(config: Config) -> tuple[list[tuple[str, Artifact]], list[Artifact]]:
    """The artifacts that count, with the names of their paths in the task, and the others. `destination` is a place among the collected
    files, as in Harbor."""
    found = [
        (f"artifacts.{index}", Artifact(source=entry))
        if isinstance(entry, str)
        else (f"artifacts.{index}.source", entry)
        for index, entry in enumerate(config.artifacts)
    ]
    if not any(one.source.rstrip("/") == PUBLISHED for _, one in found):
        found.insert(0, (PUBLISHED, Artifact(source=PUBLISHED)))
    places: list[PurePosixPath] = []
    counted, others = [], []
    for name, one in found:
        place = PurePosixPath("/") / (one.destination or one.source)
        if any(place.is_relative_to(other) or other.is_relative_to(place) for other in places):
            others.append(one)
        else:
            counted.append((name, one))
            places.append(place)
    return counted, others


def _made_by(found: Translation, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A sandbox with the variables and folders of a Dockerfile, where the task doesn't say others."""
    workdir = workdir_of(found.workdir, spec.get("workdir"))
    changes = {} if workdir is None else {"workdir": workdir}
    return {**spec, "env": found.env | spec["env"], "path": found.path, **changes}
