"""The manifests of compose/kubernetes, built as a user builds them, against Kubernetes' schemas and KEDA's words."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from polar.cli.worker import Role
from tests.compose.stack import COMPOSE
from topics.contract import catalogue

pytestmark = pytest.mark.docker

MANIFESTS = COMPOSE / "kubernetes"
VERSION = "1.32"
"""Of Kubernetes; any that has kustomize's labels and autoscaling/v2 would do."""
KEDA = jsonschema_rs.validator_for(json.loads(Path(__file__).with_name("keda.schema.json").read_text()))
ROLES = ("proxy", *(role.value for role in Role))
SECRETS = (
    "keys.json",
    "control.token",
    "webhook.secret",
    *(f"{role}.password" for role in (*ROLES, "admin", "autoscaler")),
)
CONTROL_PORTS = {8401, 9464}
Manifest = dict[str, Any]


def build(folder: Path) -> list[Manifest]:
    """What kustomize makes of a folder: the program itself, or a recent kubectl's own."""
    programs = (("kustomize", "build"), ("kubectl", "kustomize"))
    command = next((command for command in programs if shutil.which(command[0])), None)
    if command is None:
        pytest.fail(
            "neither kustomize nor kubectl is installed; `go install sigs.k8s.io/kustomize/kustomize/v5@latest`"
        )
    ended = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return list(yaml.safe_load_all(ended.stdout))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The example overlay, with secrets beside it as its first lines ask for."""
    folder = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(MANIFESTS, folder)
    for name in SECRETS:
        (folder / "example" / name).write_text("secret")
    return build(folder / "example")


def check(manifest: Manifest) -> None:
    """Raises where a field is missing, misspelt or of the wrong type."""
    if manifest["apiVersion"].startswith("keda.sh/"):
        KEDA.validate(manifest)
    else:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def pod(workload: Manifest) -> Manifest:
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def test_base_and_example_hold_to_the_schemas(example: list[Manifest]) -> None:
    for manifest in [*build(MANIFESTS / "base"), *example]:
        check(manifest)


WRONG: dict[str, tuple[str, Callable[[Manifest], object]]] = {
    "a misspelt field of a pod": ("Deployment", lambda one: pod(one).update(terminationGracePeriod=3)),
    "a number where words belong": ("Service", lambda one: one["spec"]["ports"][0].update(name=8400)),
    "a misspelt field of a scaled object": ("ScaledObject", lambda one: one["spec"].update(maxReplicas=3)),
    "a misspelt setting of a scaler": (
        "ScaledObject",
        lambda one: one["spec"]["triggers"][0]["metadata"].update(treshold="8"),
    ),
    "a number for a scaler, which takes texts": (
        "ScaledObject",
        lambda one: one["spec"]["triggers"][0]["metadata"].update(threshold=8, lagThreshold=8),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_field_is_found(example: list[Manifest], wrong: str) -> None:
    kind, spoil = WRONG[wrong]
    manifest = copy.deepcopy(next(iter(of_kind(example, kind).values())))
    check(manifest)
    spoil(manifest)
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema_rs.ValidationError)):
        check(manifest)


def test_a_pod_has_more_time_than_its_worker_takes(example: list[Manifest]) -> None:
    for name, deployment in of_kind(example, "Deployment").items():
        arguments = pod(deployment)["containers"][0]["args"]
        grace = next((int(one.removeprefix("--grace=")) for one in arguments if one.startswith("--grace=")), 0)
        assert pod(deployment)["terminationGracePeriodSeconds"] >= grace + 20, name
        assert (grace > 0) == (name in ("init", "run", "evaluate"))


def test_every_role_has_a_workload(example: list[Manifest]) -> None:
    assert set(of_kind(example, "Deployment")) == set(ROLES)


def test_the_stages_share_a_host_name_and_their_sandboxes(example: list[Manifest]) -> None:
    deployments = of_kind(example, "Deployment")
    for stage in ("init", "run", "evaluate"):
        spec = pod(deployments[stage])
        assert spec["hostname"] == "stages"
        assert "runtimes" in {one["name"] for one in spec["volumes"]}


def test_control_ports_open_to_prometheus_alone(example: list[Manifest]) -> None:
    policies = of_kind(example, "NetworkPolicy")
    closed = policies.pop("closed")["spec"]
    assert closed["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "polar"}
    assert "ingress" not in closed
    names = {"model": 8400, "control": 8401, "metrics": 9464}
    opening = {name: policy for name, policy in policies.items() if "ingress" in policy["spec"]}
    assert "figures" in opening
    for name, policy in opening.items():
        for rule in policy["spec"]["ingress"]:
            opened = {names.get(port["port"], port["port"]) for port in rule["ports"]}
            assert opened.isdisjoint(CONTROL_PORTS) or name == "figures", name
            assert rule["from"], name


def test_pods_that_run_tasks_reach_kafka_the_model_and_names_alone(example: list[Manifest]) -> None:
    policy = of_kind(example, "NetworkPolicy")["stages"]["spec"]
    assert policy["policyTypes"] == ["Egress"]
    reached = set()
    for rule in policy["egress"]:
        labels = {label for to in rule["to"] for label in to["podSelector"]["matchLabels"].values()}
        assert not any("ipBlock" in to for to in rule["to"])
        reached |= {(label, port["port"]) for label in labels - {"polar"} for port in rule["ports"]}
    assert reached == {("kube-dns", 53), ("kafka", 9092), ("proxy", 8400)}
    chosen = policy["podSelector"]["matchLabels"].items()
    deployments = of_kind(example, "Deployment")
    of_pods = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in deployments.items()}
    assert {name for name in of_pods if chosen <= of_pods[name].items()} == {"init", "run", "evaluate"}


def test_each_pod_has_the_secrets_that_it_uses_alone_as_files(example: list[Manifest]) -> None:
    """No value of a secret is in an environment."""
    more = {
        "coordinator": {"keys.json"},
        "proxy": {"keys.json", "control.token"},
        "run": {"keys.json"},
        "webhooks": {"webhook.secret"},
    }
    workloads = of_kind(example, "Deployment") | of_kind(example, "Job")
    assert set(workloads) == {*ROLES, "topics"}
    for name, workload in workloads.items():
        container = pod(workload)["containers"][0]
        assert "secretKeyRef" not in json.dumps(container)
        (secret,) = (volume["secret"] for volume in pod(workload)["volumes"] if "secret" in volume)
        login = "admin" if name == "topics" else name
        # Without `items` all files of the secret would be there.
        files = {item["path"]: item["key"] for item in secret["items"]}
        assert files.pop("kafka.password") == f"{login}.password"
        assert files == {file: file for file in more.get(name, ())}, name
        assert {"name": "POLAR_KAFKA_SASL_USERNAME", "value": login} in container["env"]
    (made,) = of_kind(example, "Secret").values()
    (autoscaler,) = of_kind(example, "TriggerAuthentication").values()
    for reference in autoscaler["spec"]["secretTargetRef"]:
        assert reference["name"] == made["metadata"]["name"]
        assert reference["key"] in made["data"]
    assert not of_kind(build(MANIFESTS / "base"), "Secret")


def test_autoscalers_ask_for_workloads_groups_and_topics_that_exist(example: list[Manifest]) -> None:
    deployments = of_kind(example, "Deployment")
    known = {topic.full_name("polar") for topic in catalogue.FIXED}
    for name, scaled in of_kind(example, "ScaledObject").items():
        assert scaled["spec"]["scaleTargetRef"]["name"] == name
        assert "replicas" not in deployments[name]["spec"], "KEDA and the manifest would both set them"
        for trigger in scaled["spec"]["triggers"]:
            settings = trigger["metadata"]
            if trigger["type"] == "kafka":
                assert settings["topic"] in known
                assert settings["consumerGroup"] == f"polar.{name}"
                assert settings["bootstrapServers"] == setting(example, "POLAR_KAFKA")
                assert trigger["authenticationRef"]["name"] in of_kind(example, "TriggerAuthentication")
                assert settings["sasl"] == setting(example, "POLAR_KAFKA_SASL_MECHANISM").lower().replace(
                    "-sha-", "_sha"
                )
            else:
                assert set(re.findall(r'stage="(\w+)"', settings["query"])) == {name}


def setting(manifests: list[Manifest], name: str) -> str:
    (settings,) = of_kind(manifests, "ConfigMap").values()
    return str(settings["data"][name])
