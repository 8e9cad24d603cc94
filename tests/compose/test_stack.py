"""The stack of compose/, as a user has it: brought up, asked, scaled, hurt, looked at, and gone again. The tests build on one another.

Stand-ins: the scripted engine for an inference server; brokers and Prometheus are built of Kafka's jars and Debian's package, for the
official images.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import yaml

from tests.compose.stack import COMPOSE, Stack
from tests.waiting import until
from topics.environment import registry

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

STAGES = ("init", "run", "evaluate")
CONSUMERS = ("fanout", "coordinator", "builder", "analytics", "webhooks", *STAGES)
SAMPLES = 48
"""Twice what three run workers take at once: one that is killed has work in hand."""
CALLS = 3
QUIET = (
    "Disowned and refused",
    "Staleness",
    "Null rewards",
    "Requests of polar rest and polar page",
    "Answers of polar rest and polar page",
)
"""Panels that may be empty when all is well: nothing is trained here, and neither service is part of the stack."""
TASK = {
    "task_id": "hurt",
    "instruction": "Count.",
    "num_samples": SAMPLES,
    "agent": {
        "harness": "shell",
        "custom_shell": {
            "command": f"""for turn in $(seq {CALLS}); do
                body=$(printf '{{"model": "any", "messages": [{{"role": "user", "content": "Say %s."}}]}}' "$turn")
                curl -fsS --retry 8 --retry-all-errors "$OPENAI_BASE_URL/chat/completions" \\
                    -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" -d "$body" >> answers
                sleep 8
            done"""
        },
    },
    "timeouts": {"run": 300},
    "evaluator": {"strategy": "test_on_output", "config": {"test_command": "test -s answers"}},
}


FORGERY = """
import asyncio
from topics.environment import settings
from topics.log import kafka

async def main():
    async with kafka.started(kafka.producer(settings.load(None)), 5) as producer:
        await (await producer.send("polar.events", b"{}", partition=0))
        try:
            await (await producer.send("polar.trajectories", b"{}", partition=0))
        except kafka.KafkaError as error:
            assert type(error).__name__ == "TopicAuthorizationFailedError", error
            print("a forged trajectory is refused")

asyncio.run(main())
"""
"""A program that writes a topic of the run worker's role, and one that only the builder may write."""


def commands() -> list[str]:
    """The README's first two: from zero to a trajectory."""
    block = re.search(r"```console\n(.*?)```", (COMPOSE / "README.md").read_text(), re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", "").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")][:2]


def trajectories(stack: Stack, task_id: str) -> list[dict[str, Any]]:
    lines = stack.polar("trajectories", "--format", "jsonl").splitlines()
    return [found for line in lines if (found := json.loads(line))["task_id"] == task_id]


def panels() -> list[Any]:
    dashboard = json.loads((COMPOSE / "monitoring/dashboards/polar.json").read_text())
    return list(dashboard["panels"])


def test_two_commands_of_the_readme_lead_to_a_trajectory(stack: Stack) -> None:
    up, ask = commands()
    assert up == "docker compose up --build --detach"
    stack.compose.start()  # the same
    assert "COMPLETED" in stack.shell(ask)
    found = trajectories(stack, "hello")
    assert sorted(one["session_id"] for one in found) == ["hello.0", "hello.1"]
    assert [one["reward"] for one in found] == [1.0, 1.0]
    assert all(sum(trace["loss_mask"]) > 0 for one in found for trace in one["traces"])


def test_nothing_but_the_proxy_is_reached_from_outside(stack: Stack) -> None:
    published = {
        (container.labels["com.docker.compose.service"], door["HostIp"])
        for container in stack.containers()
        for doors in container.ports.values()
        for door in doors or []
    }
    assert published == {("proxy", "127.0.0.1")}


def test_a_harness_reaches_neither_the_secrets_nor_kafka_and_its_session_says_what_it_reaches(stack: Stack) -> None:
    """Its worker, in the same container, reaches both."""
    read, connect = "cat /var/lib/polar/secrets/keys.json", "exec 3<>/dev/tcp/kafka-1/9092"
    for attack in (read, connect):
        stack.inside("run", "bash", "-c", attack)
    ask = 'curl -fsS "$OPENAI_BASE_URL/models" -H "Authorization: Bearer $OPENAI_API_KEY"'
    command = f"{ask} || exit 1; ({read}) && exit 2; ({connect}) && exit 3; echo only the model answered"
    task = {
        "task_id": "attack",
        "instruction": "Try.",
        "agent": {"harness": "shell", "custom_shell": {"command": command}},
    }
    stack.polar("submit", "-", "--wait", stdin=json.dumps(task))
    assert [one["reward"] for one in trajectories(stack, "attack")] == [1.0]
    assert "only the model answered" in stack.polar("show", "attack.0", "--artifact", "agent_log")
    assert "runtime landlock, without: udp, unix_sockets" in stack.polar("show", "attack.0")


def test_each_service_has_its_own_secrets_and_login_alone(stack: Stack) -> None:
    folder = "/var/lib/polar/secrets"
    more = {
        "coordinator": {"keys.json"},
        "run": {"keys.json"},
        "proxy": {"keys.json", "control.token"},
        "webhooks": {"webhook.secret"},
    }
    passwords = set()
    for service in (*CONSUMERS, "proxy"):
        assert set(stack.inside(service, "ls", folder).split()) == {"kafka.password", *more.get(service, ())}, service
        passwords.add(stack.inside(service, "cat", f"{folder}/kafka.password"))
    assert len(passwords) == len(CONSUMERS) + 1
    assert "is refused" in stack.inside("run", "/opt/polar/bin/python", "-c", FORGERY)


@pytest.mark.soak
def test_the_clis_of_all_presets_run_in_containers(stack: Stack) -> None:
    """Without privileges, in the runtime `landlock`; each CLI is downloaded at its first use."""
    presets = [name for name in registry.names(registry.Kind.HARNESS) if name != "shell"]
    tasks = [{"task_id": f"cli-{name}", "instruction": "Say hello.", "agent": {"harness": name}} for name in presets]
    stack.polar("submit", "-", "--wait", stdin="\n".join(map(json.dumps, tasks)))
    for name in presets:
        [found] = trajectories(stack, f"cli-{name}")
        assert found["status"] == "COMPLETED", (name, found["error"])
        assert sum(sum(trace["loss_mask"]) for trace in found["traces"]) > 0, name
        assert "runtime landlock, without: udp, unix_sockets" in stack.polar("show", f"cli-{name}.0")


def test_every_service_scales_and_prometheus_finds_every_replica(stack: Stack) -> None:
    wanted = dict.fromkeys((*CONSUMERS, "proxy"), 2) | {"run": 3}
    stack.scale(**wanted, prometheus=1)
    expected = Counter({(role, "up"): count for role, count in wanted.items()})
    until(lambda: stack.targets() == expected, 400, every_s=0.5)
    for stage in STAGES:
        stack.answered(f'sum(polar_backlog{{stage="{stage}"}})', 60)


def test_a_killed_worker_and_a_killed_broker_cost_no_session(stack: Stack) -> None:
    stack.polar("submit", "-", stdin=json.dumps(TASK))
    stack.answered('sum(polar_held{stage="run"}) >= 20', 120)
    worker, broker = stack.containers("run")[0], stack.containers("kafka-2")[0]
    worker.kill()
    broker.kill()

    stack.polar("submit", "-", "--wait", stdin=json.dumps(TASK))  # the same task: only waits

    found = trajectories(stack, "hurt")
    assert Counter(one["session_id"] for one in found) == {f"hurt.{index}": 1 for index in range(SAMPLES)}
    assert {(one["status"], one["reward"]) for one in found} == {("COMPLETED", 1.0)}
    assert max(one["attempt"] for one in found) > 1, "the killed worker had nothing in hand"
    assert {sum(len(trace["calls"]) for trace in one["traces"]) for one in found} == {CALLS}
    assert len(stack.containers("run")) == 2
    assert not stack.containers("kafka-2")


def test_the_dashboard_asks_for_what_there_is(stack: Stack) -> None:
    for panel in panels():
        for query in (target["expr"] for target in panel["targets"]):
            if panel["title"] in QUIET:
                stack.asked(query)
            else:
                stack.answered(query, 60)


def test_an_autoscaler_gets_one_number_from_each_query(stack: Stack) -> None:
    scaling = yaml.safe_load_all((COMPOSE / "kubernetes/base/scaling.yaml").read_text())
    triggers = [trigger for scaled in scaling for trigger in scaled["spec"].get("triggers", ())]
    queries = [trigger["metadata"]["query"] for trigger in triggers if trigger["type"] == "prometheus"]
    assert len(queries) == len(STAGES)
    assert [len(stack.asked(query)) for query in queries] == [1, 1, 1]


def test_no_secret_is_on_a_command_line_or_in_an_environment(stack: Stack) -> None:
    files = [(service, "kafka.password") for service in (*CONSUMERS, "proxy")]
    files += [("run", "keys.json"), ("proxy", "control.token"), ("webhooks", "webhook.secret")]
    secrets = [stack.inside(service, "cat", f"/var/lib/polar/secrets/{name}") for service, name in files]
    words = [word for text in secrets for word in re.findall(r"[A-Za-z0-9_+/=-]{20,}", text)]
    assert len(words) >= len(files)
    for container in stack.containers():
        told = json.dumps(container.attrs["Config"]) + json.dumps(container.top())
        assert not [word for word in words if word in told], container.name


def test_nothing_is_left_after_down(stack: Stack) -> None:
    stack.compose.stop()
    assert stack.left() == []
