"""A separate verifier of Harbor becomes `runtime.verifier`, or refuses its task by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polar.tasks.harbor_mapping import mapped
from polar.tasks.harbor_rules import Outcome
from polar.tasks.harbor_verifier import MAKE_PUBLISHED
from polar.tasks.task_sets import Member
from tests.polar.tasks.writing import AGENT, mapped_task, read, write
from topics.types.runtime import ArtifactSpec, CollectSpec, Network, Seen
from topics.types.task import TaskRequest
from topics.types.uploads import PrepareAction

IMAGE: dict[str, Any] = {"docker_image": "run:1", "cpus": 2, "env": {"A": "1"}, "workdir": "/app"}
SEPARATE: dict[str, Any] = {"environment_mode": "separate"}


def request(folder: Path, config: dict[str, Any], **variables: str) -> TaskRequest:
    made = mapped_task(folder, config, AGENT, **variables).request()
    assert isinstance(made, TaskRequest), made
    assert made.runtime.verifier is not None
    assert made.runtime.verifier_sees is Seen.WORKSPACE
    assert made.evaluator.strategy == "harbor"
    return made


def test_without_an_environment_it_is_a_copy_of_the_task_s_with_the_tests_uploaded(tmp_path: Path) -> None:
    made = request(tmp_path, {"environment": IMAGE, "verifier": SEPARATE, "artifacts": ["/app/out.txt", "sub/dir"]})
    verifier = made.runtime.verifier
    assert verifier is not None
    assert (verifier.image, verifier.cpus, verifier.env, verifier.workdir) == ("run:1", 2, {"A": "1"}, "/app")
    assert [one.path for one in verifier.artifacts] == ["/logs/artifacts", "/app/out.txt", "sub/dir"]
    assert [one.target for one in made.runtime.eval_prepare or ()] == [None, "/tests"]


def test_artifacts_without_some_of_their_files(tmp_path: Path) -> None:
    artifacts = ["out", {"source": "/logs/artifacts/", "exclude": ["*.o"]}, {"source": "/app", "exclude": ["b", "c*"]}]
    made = request(tmp_path, {"environment": IMAGE, "verifier": SEPARATE, "artifacts": artifacts})
    assert made.runtime.verifier is not None
    assert made.runtime.verifier.artifacts == [
        ArtifactSpec(path="out"),
        ArtifactSpec(path="/logs/artifacts/", exclude=["*.o"]),
        ArtifactSpec(path="/app", exclude=["b", "c*"]),
    ]


@pytest.mark.parametrize(
    ("artifacts", "paths"),
    [
        (["/a", {"source": "/a/b", "exclude": ["x"]}], ["/a"]),
        (["/a/b", "/a"], ["/a/b"]),
        (["a", "/a"], ["a"]),
        (["/a", {"source": "/a", "destination": "whole"}], ["/a", "/a"]),
        (["/a", {"source": "/b", "destination": "a/x"}], ["/a"]),
    ],
)
def test_of_artifacts_in_one_place_the_first_counts(tmp_path: Path, artifacts: list[Any], paths: list[str]) -> None:
    made = request(tmp_path, {"environment": IMAGE, "verifier": SEPARATE, "artifacts": artifacts})
    assert made.runtime.verifier is not None
    assert [one.path for one in made.runtime.verifier.artifacts] == ["/logs/artifacts", *paths]


def test_an_artifact_that_does_not_count_is_named(tmp_path: Path) -> None:
    found = mapped_task(
        tmp_path, {"environment": IMAGE, "verifier": SEPARATE, "artifacts": ["/logs", "/out"]}, AGENT
    ).findings
    named = [(one.outcome, one.value) for one in found if one.name == "artifacts"]
    assert named == [(Outcome.CARRIED, ["/logs", "/out"]), (Outcome.NEUTRAL, ["/logs"])]


def test_an_environment_with_an_image_takes_nothing_of_the_task_s_and_has_the_tests(tmp_path: Path) -> None:
    own = {"docker_image": "judge:1", "memory_mb": 64, "env": {"B": "${B:-2}"}}
    made = request(tmp_path, {"environment": IMAGE, "verifier": {"environment": own}}, B="3")
    verifier = made.runtime.verifier
    assert verifier is not None
    assert (verifier.image, verifier.memory_mb, verifier.env) == ("judge:1", 64, {"B": "3"})
    assert (verifier.cpus, verifier.workdir, verifier.prepare) == (None, None, [])
    assert made.runtime.eval_prepare is None


def test_a_dockerfile_of_the_tests_makes_its_image(tmp_path: Path) -> None:
    text = "FROM judge:1\nENV C=3\nWORKDIR /tests\nCOPY test.sh /tests/\nRUN chmod +x test.sh\n"
    write(tmp_path, {}, tests__Dockerfile=text)
    made = request(tmp_path, {"environment": IMAGE, "verifier": SEPARATE | {"environment": {"cpus": 1}}})
    verifier = made.runtime.verifier
    assert verifier is not None
    assert (verifier.image, verifier.env, verifier.workdir) == ("judge:1", {"C": "3"}, "/tests")
    assert [one.type for one in verifier.prepare][-2:] == ["upload_file", "exec"]
    assert (made.runtime.setup_network, made.runtime.eval_prepare, made.runtime.image) == (Network.HOST, None, "run:1")


def test_an_environment_without_an_image_has_that_of_the_task_s_dockerfile(tmp_path: Path) -> None:
    own = {"verifier": {"environment": {"env": {"E": "5"}}}, "environment": {"env": {"A": "1"}}}
    text = "FROM run:2\nENV D=4\nWORKDIR /app\nRUN true\n"
    task = read(tmp_path, own, environment__Dockerfile=text)
    found = mapped(Member("t", tmp_path), task, AGENT).request()
    assert isinstance(found, TaskRequest), found
    verifier = found.runtime.verifier
    assert verifier is not None
    assert (verifier.image, verifier.env, verifier.workdir) == ("run:2", {"D": "4", "E": "5"}, "/app")
    assert [*verifier.prepare, PrepareAction.model_validate(MAKE_PUBLISHED)] == found.runtime.prepare
    assert verifier.prepare != []


def test_the_limit_of_the_tests_and_the_time_to_make_its_sandbox_are_kept_apart(tmp_path: Path) -> None:
    made = request(
        tmp_path, {"environment": IMAGE | {"build_timeout_sec": 100}, "verifier": SEPARATE | {"timeout_sec": 30}}
    )
    assert (made.timeouts.evaluate, made.evaluator.config["timeout_s"]) == (130, 30)


def test_its_user_is_its_own(tmp_path: Path) -> None:
    made = request(tmp_path, {"environment": IMAGE, "agent": {"user": "ana"}, "verifier": SEPARATE | {"user": 0}})
    assert made.runtime.verifier is not None
    assert (made.runtime.user, made.runtime.verifier.user) == ("ana", "root")


@pytest.mark.parametrize(("mode", "budget_s"), [("separate", 237), ("shared", 137)])
def test_commands_that_collect_have_time_of_their_own(tmp_path: Path, mode: str, budget_s: float) -> None:
    collect = [{"command": "dump", "service": "main", "timeout_sec": 47}, {"command": "tidy"}]
    config = {
        "environment": IMAGE | {"build_timeout_sec": 100},
        "verifier": {"environment_mode": mode, "timeout_sec": 30, "collect": collect},
    }
    made = mapped_task(tmp_path, config).request()
    assert isinstance(made, TaskRequest), made
    assert made.runtime.collect == [CollectSpec(command="dump", timeout_s=47), CollectSpec(command="tidy")]
    assert (made.timeouts.evaluate, made.evaluator.config["timeout_s"]) == (budget_s, 30)


def test_its_network_is_the_verifier_s_or_that_of_its_environment(tmp_path: Path) -> None:
    own = {"docker_image": "judge:1", "network_mode": "no-network"}
    made = request(tmp_path, {"environment": IMAGE, "verifier": {"environment": own}})
    assert (made.runtime.network, made.runtime.verifier_network) == (Network.HOST, Network.NONE)
    own["network_mode"] = "public"
    made = request(tmp_path, {"environment": IMAGE, "verifier": {"environment": own, "network_mode": "no-network"}})
    assert made.runtime.verifier_network is Network.NONE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"artifacts": [{"source": "/x", "service": "db"}]}, "service 'db'"),
        ({"artifacts": [{"source": "/x", "exclude": ["[ab].o"]}]}, "a pattern of * and ?"),
        ({"verifier": {"environment": {"docker_image": "a", "os": "windows"}}}, "Linux alone"),
        ({"verifier": {"environment": {"docker_image": "a", "gpu_types": ["H100"]}}}, "gpu_types"),
        ({"artifacts": ["/tmp/x"]}, "of its own"),
        ({"artifacts": [{"source": "/", "destination": "all"}]}, "the path of a file or folder"),
        ({"verifier": SEPARATE | {"collect": [{"command": "dump", "service": "db"}]}}, "service 'db'"),
        ({"verifier": SEPARATE | {"collect": [{"command": "dump", "user": "ana"}]}}, "one user"),
    ],
)
def test_what_it_cannot_have_refuses_the_task(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    refusal = mapped_task(tmp_path, {"environment": IMAGE, "verifier": SEPARATE} | changes).request()
    assert not isinstance(refusal, TaskRequest)
    assert refusal.outcome is Outcome.REFUSED
    assert words in refusal.becomes


def test_what_a_task_request_refuses_of_an_artifact_has_the_task_s_name(tmp_path: Path) -> None:
    artifacts: list[Any] = ["/a", {"source": "/b", "exclude": ["*.o", "[ab].o"]}, "/a/inner", "/tmp/x"]

    def refusal(given: list[Any]) -> tuple[str, object]:
        found = mapped_task(tmp_path, {"environment": IMAGE, "verifier": SEPARATE, "artifacts": given}).request()
        assert not isinstance(found, TaskRequest)
        return found.name, found.value

    assert refusal(artifacts) == ("artifacts.1.exclude.1", "[ab].o")
    assert refusal(artifacts[2:]) == ("artifacts.1", None)
    assert refusal([{"source": "/logs/artifacts"}, {"source": "/tmp/x"}]) == ("artifacts.1.source", None)


def test_services_beside_it_and_other_runtimes_refuse_the_task(tmp_path: Path) -> None:
    config = {"environment": IMAGE, "verifier": SEPARATE}
    docker = mapped_task(tmp_path, config, {**AGENT, "runtime": {"backend": "docker"}}).request()
    assert not isinstance(docker, TaskRequest)
    assert "the runtime docker has no sandbox for a verifier" in docker.becomes
    write(tmp_path, {}, tests__Dockerfile="FROM a\n")
    (tmp_path / "tests" / "docker-compose.yaml").write_text("services: {}\n")
    composed = mapped_task(tmp_path, config).request()
    assert not isinstance(composed, TaskRequest)
    assert "docker-compose.yaml" in composed.becomes
