"""`polar export atif`, `harbor` and `inspect` over a lake: what is on disk, and an export that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from polar.cli import app
from polar.cli.exits import Exit
from polar.export import viewing
from tests.polar.export.talks import turns, write
from topics.environment.settings import Settings
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Status

LOST = SessionError("run", Kind.INFRA, "lost", "its worker died")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose lake has four sessions of two tasks."""
    folder = tmp_path / ".polar"
    accounting = Accounting(init_ms=2000, run_ms=10_000, evaluate_ms=3000)
    talks = [
        turns("a.0", reward=1.0, num_samples=2, run="night", accounting=accounting, reward_reason="3 of 3 tests"),
        turns("a.1", reward=0.0, num_samples=2, run="night", first=200),
        turns("b.0", 1, reward=None, run="night", status=Status.FAILED, error=LOST, first=300),
        turns("b.1", 0, reward=None, run="night", status=Status.CANCELLED),
    ]
    write(Settings(data=folder), talks)
    return folder


def export(*arguments: str | Path) -> Any:
    """What the command prints as JSON."""
    done = CliRunner().invoke(app.app, ["export", *map(str, arguments), "--format", "json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_document_for_each_session(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export("atif", "--out", out, "--data", data) == {"path": str(out), "sessions": 4, "kept": 0}
    assert [*tree(out)] == ["a.0.json", "a.1.json", "b.0.json", "b.1.json"]
    steps = json.loads((out / "a.0.json").read_bytes())["steps"]
    assert [step["source"] for step in steps] == ["user", "agent", "user", "agent"]
    assert [step["metrics"]["completion_token_ids"] for step in steps[1::2]] == [[103, 104], [108, 109]]
    assert steps[3]["metrics"]["prompt_token_ids"] == [*range(100, 108)]


def test_without_tokens_only_their_numbers_are_written(data: Path, tmp_path: Path) -> None:
    export("atif", "--out", tmp_path, "--task", "a", "--no-tokens", "--data", data)
    metrics = json.loads((tmp_path / "a.0.json").read_bytes())["steps"][1]["metrics"]
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (3, 2)
    assert not {"prompt_token_ids", "completion_token_ids", "logprobs"} & metrics.keys()


@pytest.mark.parametrize(("form", "gone"), [("atif", "b.0.json"), ("harbor", "night/b.0")])
def test_an_interrupted_export_goes_on_and_makes_the_same_bytes(
    data: Path, tmp_path: Path, form: str, gone: str
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    export(form, "--out", whole, "--run", "night", "--data", data)
    export(form, "--out", cut, "--run", "night", "--data", data)
    # As a kill would leave it: one session is a draft, and the job's own files are missing.
    (cut / gone).rename(cut / f"{gone}{viewing.DRAFT}")
    for name in ("config.json", "result.json"):
        (cut / "night" / name).unlink(missing_ok=True)
    done = export(form, "--out", cut, "--run", "night", "--data", data)
    assert (done["sessions"], done["kept"]) == (4, 3)
    assert tree(cut) == tree(whole)


def test_a_job_has_its_trials_with_rewards_errors_and_times(data: Path, tmp_path: Path) -> None:
    export("harbor", "--out", tmp_path, "--run", "night", "--data", data)
    job = tmp_path / "night"
    stats = json.loads((job / "result.json").read_bytes())["stats"]
    assert (stats["n_completed_trials"], stats["n_errored_trials"], stats["n_cancelled_trials"]) == (4, 2, 1)
    (one,) = stats["evals"].values()
    assert one["reward_stats"] == {"reward": {"1.0": ["a.0"], "0.0": ["a.1"]}}
    assert one["exception_stats"] == {"lost": ["b.0"], "CancelledError": ["b.1"]}
    assert one["metrics"] == [{"mean": 0.5}]
    trial = json.loads((job / "a.0" / "result.json").read_bytes())
    assert trial["verifier_result"] == {"rewards": {"reward": 1.0}}
    times = [
        trial[stage][end][17:23]
        for stage in ("environment_setup", "agent_execution", "verifier")
        for end in ("started_at", "finished_at")
    ]
    assert times == ["18.000", "20.000", "20.000", "30.000", "30.000", "33.000"]
    assert (job / "a.0" / "verifier" / "test-stdout.txt").read_text() == "3 of 3 tests"
    document = json.loads((job / "a.0" / "agent" / "trajectory.json").read_bytes())
    assert document["session_id"] == "a.0"


def test_a_log_has_a_sample_for_each_session_and_the_same_bytes_again(data: Path, tmp_path: Path) -> None:
    done = export("inspect", "--out", tmp_path, "--run", "night", "--data", data)
    assert done == {"path": str(tmp_path / "night.eval"), "sessions": 4, "kept": 0}
    written = (tmp_path / "night.eval").read_bytes()
    export("inspect", "--out", tmp_path, "--run", "night", "--data", data)
    assert (tmp_path / "night.eval").read_bytes() == written
    with ZipFile(tmp_path / "night.eval") as file:
        names = [name for name in file.namelist() if name.startswith("samples/")]
        assert names == [f"samples/{task}_epoch_{epoch}.json" for task in "ab" for epoch in (1, 2)]
        sample = json.loads(file.read(names[0]))
        header = json.loads(file.read("header.json"))
    assert header["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.5
    assert sample["scores"]["reward"]["value"] == 1.0
    first, second = sample["events"]
    assert (first["input_refs"], second["input_refs"]) == ([[0, 1]], [[0, 3]])
    logprobs = second["output"]["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in logprobs] == ["108", "109"]


def test_a_job_s_name_can_t_leave_the_folder(data: Path, tmp_path: Path) -> None:
    arguments = ["export", "harbor", "--out", str(tmp_path), "--job", "../x", "--data", str(data)]
    done = CliRunner().invoke(app.app, arguments)
    assert done.exit_code == Exit.BAD_INPUT
    assert "--job: expected a name" in done.stderr
