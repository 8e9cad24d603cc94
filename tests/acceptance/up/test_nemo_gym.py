"""NeMo Gym's own servers, 0.7.0, with Polar as their environment, against the running system: rows, rewards, a restart, a disconnect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.vllm_cpu.install import pins
from polar.trainer.exporters.nemo import results
from polar.trainer.groups import Group
from tests.acceptance.up.running import Up, engine_record, environment, trajectory
from tests.acceptance.up.test_up import CALL
from tests.installed import packages
from tests.serving import free_port

pytestmark = [pytest.mark.hard, pytest.mark.timeout(1000)]

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "acceptance" / "nemo_gym"
PINS = FOLDER / "requirements.txt"
COLLECTED_S = 600.0
"""20 s of CPU time, mostly imports; machines are busy."""
RUN = "nemo-gym"


def config(up: Up, away: Path) -> dict[str, Any]:
    """NeMo Gym's, as docs/nemo_gym.md has it. `away`: the folder of a system that isn't there."""
    task = {
        "agent": {"harness": "shell", "custom_shell": {"command": CALL}},
        "evaluator": {"strategy": "session_completed"},
    }
    here = {"entrypoint": "app.py", "host": "127.0.0.1", "data": str(up.data)}
    agent = {**here, "port": free_port(), "run": RUN, "deadline_s": 240.0, "task": task}
    away.mkdir()
    (away / "polar.env").write_text(f"POLAR_KAFKA=127.0.0.1:{free_port()}\n")
    nowhere = {**agent, "port": free_port(), "data": str(away)}
    return {
        "head_server": {"host": "127.0.0.1", "port": free_port()},
        "dry_run": False,
        "polar_agent": {"responses_api_agents": {"polar_agent": agent}},
        "polar_agent_away": {"responses_api_agents": {"polar_agent": nowhere}},
        "polar_resources": {"resources_servers": {"polar": {**here, "port": free_port(), "domain": "coding"}}},
    }


@pytest.fixture(scope="module")
def collected(up: Up, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The answers of NeMo Gym's servers by the name of their request in collect.py, and its folder."""
    folder = tmp_path_factory.mktemp("nemo_gym")
    (folder / "config.json").write_text(json.dumps(config(up, folder / "away")))
    (folder / "call.sh").write_text(CALL)
    path = os.pathsep.join(map(str, (ROOT, packages("nemo-gym", PINS, sys.executable, "--ignore-requires-python"))))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", FOLDER / "collect.py"],
        cwd=folder,  # NeMo Gym moves the current folder to the end of the path
        env=environment() | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=COLLECTED_S,
        check=False,
    )
    logs = "".join(log.read_text()[-4000:] for log in folder.glob("*.log"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:] + logs
    return json.loads((folder / "answers.json").read_text()), folder


def calls_of(up: Up, session_id: str) -> list[dict[str, Any]]:
    return [call for call in engine_record(up) if call["session_id"] == session_id]


def check_tokens(up: Up, response: dict[str, Any], session_id: str) -> None:
    """The response's tokens are the trajectory's, and what the engine sampled."""
    found = trajectory(up, session_id)
    (exported,) = results(Group(found.task_id, [found]), task_index=0)
    assert response["id"] == exported["response"]["id"]
    (call,) = calls_of(up, session_id)
    (item,) = response["output"]
    (expected,) = exported["response"]["output"]
    assert expected.items() <= item.items()
    assert item["prompt_token_ids"] == call["prompt_token_ids"]
    assert item["generation_token_ids"] == call["token_ids"]
    assert item["generation_log_probs"] == call["logprobs"]


def test_a_row_s_reward_and_tokens_are_its_trajectory_s(up: Up, collected: tuple[dict[str, Any], Path]) -> None:
    answers, _ = collected
    status, first = answers["first"]
    assert (status, first["polar_session_id"]) == (200, f"{RUN}-0-0.0")
    assert first["reward"] == trajectory(up, first["polar_session_id"]).reward == 1.0
    assert (first["mask_sample"], first["failure_kind"]) == (False, None)
    check_tokens(up, first["response"], first["polar_session_id"])


def test_the_same_id_after_a_restart_is_the_same_trajectory(up: Up, collected: tuple[dict[str, Any], Path]) -> None:
    answers, folder = collected
    assert answers["first again"] == answers["first"]
    assert len(calls_of(up, answers["first"][1]["polar_session_id"])) == 1
    status, refused = answers["another body"]
    assert status == 422
    assert f"{RUN}-0-0" in refused["detail"]
    assert "choose a new id" in refused["detail"]
    assert {answers[f"exit of {name}"] for name in ("polar_agent", "polar_agent_away", "polar_resources")} <= {0, -15}
    for log in folder.glob("*.log"):
        assert "Unclosed" not in log.read_text()
        assert "Task was destroyed" not in log.read_text()


def test_a_client_that_disconnects_leaves_its_session_running(up: Up, collected: tuple[dict[str, Any], Path]) -> None:
    answers, _ = collected
    assert "unanswered" not in answers
    assert answers["others after a disconnect"][0] == 200
    status, again = answers["disconnected"]
    assert (status, again["reward"]) == (200, 1.0)
    assert answers["disconnected again"] == answers["disconnected"]
    check_tokens(up, again["response"], again["polar_session_id"])


def test_what_has_no_reward_is_masked_and_a_wrong_row_is_named(collected: tuple[dict[str, Any], Path]) -> None:
    answers, _ = collected
    status, masked = answers["unscored"]
    assert (status, masked["reward"], masked["mask_sample"]) == (200, 0.0, True)
    assert (masked["failure_kind"], masked["response"]["output"]) == ("verifier_error", [])
    assert masked["instance_config"] == {"mask_sample": True}
    status, refused = answers["refused"]
    assert status == 422
    assert "agent.harness" in refused["detail"]
    assert "nobody" in refused["detail"]
    assert "shell" in refused["detail"]  # one that there is
    assert answers["no index"][0] == 422


def test_without_kafka_every_request_is_told_that_it_did_not_run(collected: tuple[dict[str, Any], Path]) -> None:
    answers, _ = collected
    for number in range(2):
        status, refused = answers[f"away {number}"]
        assert status == 503
        assert "Kafka" in refused["detail"]


def test_the_resources_server_rewards_sessions_of_polar_alone(up: Up, collected: tuple[dict[str, Any], Path]) -> None:
    answers, _ = collected
    assert answers["verified"] == answers["first"]
    assert answers["seeded"] == [200, {}]
    status, response = answers["response"]
    session_id = response["metadata"]["polar_session_id"]
    assert status == 200
    check_tokens(up, response, session_id)
    status, rewarded = answers["its reward"]
    assert (status, rewarded["reward"], rewarded["polar_session_id"]) == (200, 1.0, session_id)
    for name, value in (("foreign", "polar_session_id"), ("unknown", "nobody.0")):
        assert answers[name][0] == 422
        assert value in answers[name][1]["detail"]


def test_both_pins_and_the_page_name_one_version() -> None:
    version = pins(PINS)["nemo-gym"]
    assert pins(ROOT / "tests" / "vllm" / "exporters" / "requirements.txt")["nemo-gym"] == version
    assert f"nemo-gym=={version}" in (ROOT / "docs" / "nemo_gym.md").read_text()
    assert f"nemo-gym {version}" in (ROOT / "polar" / "nemo_gym" / "__init__.py").read_text()
