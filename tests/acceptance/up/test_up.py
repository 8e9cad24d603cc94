"""`polar up` and the commands as processes: real Kafka, proxy, workers and harness processes; the engine is the scripted one."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from polar.scripted.tokenizer import Tokenizer
from tests.acceptance.up.running import Up, engine_record, is_gone
from tests.waiting import until
from topics.environment.settings import read_env_file

CALL = f"""\
{sys.executable} - <<'END'
import json, os, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({{"model": "any", "messages": [{{"role": "user", "content": "hello"}}]}}).encode(),
    {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}},
)
print(urllib.request.urlopen(request, timeout=60).read().decode())
END
"""


def test_up_says_where_everything_is(up: Up) -> None:
    said = up.output.read_text()
    assert up.addresses.keys() >= {
        "POLAR_KAFKA",
        "POLAR_NAMESPACE",
        "POLAR_PROXY_URL",
        "POLAR_CONTROL_URL",
        "POLAR_CONTROL_TOKEN_FILE",
        "POLAR_BLOBS",
        "POLAR_KEYS_FILE",
        "POLAR_WEBHOOK_SECRET_FILE",
    }
    for address in (up.addresses["POLAR_KAFKA"], up.addresses["POLAR_PROXY_URL"], str(up.data / "polar.env")):
        assert address in said
    assert "scripted: it plays scripts and filler text, no model runs" in said
    assert read_env_file(up.ready_file) == up.addresses
    for name in ("POLAR_CONTROL_TOKEN_FILE", "POLAR_KEYS_FILE", "POLAR_WEBHOOK_SECRET_FILE"):
        assert Path(up.addresses[name]).stat().st_mode & 0o777 == 0o600
    assert up.data.stat().st_mode & 0o777 == 0o700


def test_a_judge_s_calls_are_counted_and_never_trained(up: Up) -> None:
    """Without a script the engine answers the first of the choices."""
    judge = {"strategy": "judge", "config": {"rubric": "Is it done?", "choices": {"done": 0.75, "not done": 0}}}
    done = up.submit("rated", CALL, "--wait", evaluator=judge)
    assert done.returncode == 0, done.stderr
    (found,) = map(json.loads, up.polar("trajectories", "--task", "rated", "--format", "jsonl").stdout.splitlines())
    assert (found["status"], found["reward"]) == ("COMPLETED", 0.75)
    assert [len(trace["calls"]) for trace in found["traces"]] == [1]
    question = "SELECT kind, count(*) AS calls FROM calls WHERE task_id = 'rated' GROUP BY kind ORDER BY kind"
    counted = [{"kind": "judge", "calls": 1}, {"kind": "main", "calls": 1}]
    until(lambda: json.loads(up.polar("sql", question, "--format", "json").stdout) == counted, 30)


def test_a_task_goes_in_and_exact_trajectories_come_out(up: Up) -> None:
    done = up.submit("greet", CALL, "--wait", num_samples=3)
    assert (done.returncode, done.stdout) == (0, "greet\n"), done.stderr
    assert "3 of 3 sessions have ended: 3 COMPLETED" in done.stderr
    lines = up.polar("trajectories", "--task", "greet", "--format", "jsonl").stdout.splitlines()
    found = sorted((json.loads(line) for line in lines), key=lambda one: one["sample_index"])
    assert [(one["session_id"], one["status"], one["reward"]) for one in found] == [
        (f"greet.{index}", "COMPLETED", 1.0) for index in range(3)
    ]
    sampled = {tuple(call["token_ids"]): call for call in engine_record(up)}
    for one in found:
        (trace,) = one["traces"]
        (span,) = trace["calls"]
        trained = tuple(trace["token_ids"][span["start"] : span["end"]])
        assert trace["loss_mask"] == [0] * span["start"] + [1] * len(trained)
        assert sampled[trained]["prompt_token_ids"] == trace["token_ids"][: span["start"]]
        assert trace["logprobs"][span["start"] :] == sampled[trained]["logprobs"]
    assert up.polar("status", "greet").stdout.count("COMPLETED") == 3


def test_show_tells_a_session_in_the_words_that_the_engine_sampled(up: Up) -> None:
    assert up.submit("shown", CALL, "--wait").returncode == 0
    shown = up.polar("show", "shown.0", "--tokens")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("shown.0  COMPLETED  reward 1\n")
    assert "user\n    hello\n" in shown.stdout
    found = json.loads(up.polar("show", "shown.0", "--tokens", "--format", "json").stdout)
    (call,), (trace,) = found["calls"], found["traces"]
    assert call["record"]["sampled"] in [sampled["token_ids"] for sampled in engine_record(up)]
    (trained,) = [run for run in trace["runs"] if run["trained"]]
    assert trained["text"] == Tokenizer().decode(call["record"]["sampled"])
    assert f"⟦{trained['text']}⟧" in shown.stdout
    answered = json.loads(up.polar("show", "shown.0", "--artifact", "agent_log").stdout)
    assert answered["id"] == call["call_id"]


def test_an_equal_body_is_the_same_task_and_another_is_refused(up: Up) -> None:
    assert up.submit("same", "true", "--wait").returncode == 0
    assert up.submit("same", "true", "--wait").returncode == 0
    refused = up.submit("same", "false")
    assert refused.returncode == 2
    assert "task_id: already used with another body" in refused.stderr
    assert len(up.polar("trajectories", "--task", "same", "--format", "jsonl").stdout.splitlines()) == 1


def test_a_harness_that_fails_is_no_failure_of_the_work(up: Up) -> None:
    done = up.submit("wrong", "exit 3", "--wait", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["statuses"] == {"FAILED": 1}
    assert "wrong.0 FAILED: run agent/exit_code: " in done.stderr


def test_what_only_the_workers_lack_ends_with_1(up: Up) -> None:
    body = {"task_id": "lacks", "instruction": "x", "agent": {"import_path": "nosuch.module:Harness"}}
    done = up.polar("submit", "--wait", "-", stdin=json.dumps(body))
    assert done.returncode == 1
    assert "lacks.0 FAILED: " in done.stderr
    assert " input/" in done.stderr


def test_a_cancelled_task_ends_with_its_trajectories(up: Up) -> None:
    assert up.submit("endless", "sleep 600", num_samples=2).returncode == 0
    assert up.polar("cancel", "endless").returncode == 0
    done = up.submit("endless", "sleep 600", "--wait", "--format", "json", num_samples=2)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["statuses"] == {"CANCELLED": 2}
    assert "endless has ended already" in up.polar("cancel", "endless").stderr


def test_a_second_up_on_the_same_folder_is_refused(up: Up) -> None:
    second = up.polar("up")
    assert second.returncode == 2
    assert f"a `polar up` (process {up.process.pid}) already runs there" in second.stderr
    assert up.addresses, "the first one's polar.env stays"


def test_topics_stand_as_the_contract_says(up: Up) -> None:
    done = up.polar("topics", "apply")
    assert done.returncode == 0
    assert "unchanged" in done.stdout
    assert not {"created", "altered"} & set(done.stdout.split())


@pytest.mark.hard
@pytest.mark.timeout(600)
def test_killed_parts_come_back_on_their_ports_and_work_goes_on(up: Up) -> None:
    """Each Python part, Kafka, and the fork server with its parts, one after the other; a worker's kill costs an attempt, and no more."""
    before = up.addresses
    done = up.submit("survives", f"sleep 3\n{CALL}", num_samples=4)
    assert done.returncode == 0, done.stderr
    for word in ("polar.scripted", "proxy", "builder", "evaluate", "kafka.Kafka", "server"):
        (victim,) = up.parts(word)
        os.kill(victim, signal.SIGKILL)
        until(lambda word=word, victim=victim: up.parts(word) not in ([], [victim]), 30)  # type: ignore[misc] # bound now
    assert up.addresses == before
    until(lambda: up.polar("topics", "list").returncode == 0, 30)
    waited = up.submit("survives", f"sleep 3\n{CALL}", "--wait", num_samples=4)
    assert waited.returncode == 0, waited.stderr
    lines = up.polar("trajectories", "--task", "survives", "--format", "jsonl").stdout.splitlines()
    assert sorted(json.loads(line)["session_id"] for line in lines) == [f"survives.{index}" for index in range(4)]
    said = up.output.read_text()
    for name in ("engine", "proxy", "deciding", "stages"):
        assert f"{name} ended with SIGKILL; starting it again" in said
    assert "Kafka has died; starting it again" in said


@pytest.mark.hard
def test_an_up_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    running = Up(tmp_path)
    assert running.submit("left", "sleep 600").returncode == 0
    until(lambda: "running" in running.polar("status", "left").stdout, 30)
    left = running.descendants()
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    assert len(left) >= 6
    until(lambda: all(is_gone(one) for one in left), 40)
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])]
