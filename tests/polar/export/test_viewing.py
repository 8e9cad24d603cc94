"""`polar export atif`, `harbor` and `inspect` over a lake: what is on disk, and an export that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from polar.cli import app
from polar.cli.exits import Exit
from polar.export.drafts import DRAFT
from tests.polar.export.commands import export


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def exports(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export in each form."""
    folder = tmp_path_factory.mktemp("exports")
    for form in ("atif", "harbor", "inspect"):
        done = export(form, "--out", folder / form, "--run", "night", "--data", data)
        assert (done["sessions"], done["kept"]) == (4, 0)
    return folder


def test_a_document_for_each_session(exports: Path) -> None:
    out = exports / "atif"
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


@pytest.mark.parametrize(
    ("form", "gone", "kept"), [("atif", "b.0.json", 3), ("harbor", "night/b.0", 3), ("inspect", "night.eval", 0)]
)
def test_an_interrupted_export_continues_and_makes_the_same_bytes(
    data: Path, exports: Path, form: str, gone: str, kept: int
) -> None:
    out = exports / form
    whole = tree(out)
    # As a kill would leave it: one session is a draft, and the job's own files are missing.
    (out / gone).rename(out / f"{gone}{DRAFT}")
    for name in ("config.json", "result.json"):
        (out / "night" / name).unlink(missing_ok=True)
    done = export(form, "--out", out, "--run", "night", "--data", data)
    assert (done["sessions"], done["kept"]) == (4, kept)
    assert tree(out) == whole


def test_a_job_has_its_trials_with_rewards_errors_and_times(exports: Path) -> None:
    job = exports / "harbor" / "night"
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


def test_a_log_has_a_sample_for_each_session(exports: Path) -> None:
    with ZipFile(exports / "inspect" / "night.eval") as file:
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


@pytest.mark.parametrize("form", ["atif", "harbor", "inspect", "sft"])
def test_a_place_that_can_not_be_written_is_an_error_that_names_it(form: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "file"
    out.touch()
    done = CliRunner().invoke(app.app, ["export", form, "--out", str(out), "--run", "night", "--data", str(data)])
    assert done.exit_code == Exit.BAD_INPUT
    assert "--out: can't be written: " in done.stderr


@pytest.mark.parametrize("foreign", ["result.json", "trial/result.json"])
@pytest.mark.parametrize("content", ["{}", "no JSON", '{"id": 1}', "[]", '{"trial_uri": "file:///trial"}'])
def test_a_job_of_another_program_is_left_alone(data: Path, tmp_path: Path, foreign: str, content: str) -> None:
    path = tmp_path / "night" / foreign
    path.parent.mkdir(parents=True)
    path.write_text(content)
    done = CliRunner().invoke(
        app.app, ["export", "harbor", "--out", str(tmp_path), "--run", "night", "--data", str(data)]
    )
    assert done.exit_code == Exit.BAD_INPUT
    assert f"--job: {path} isn't of an export of Polar's" in done.stderr
    assert tree(tmp_path) == {f"night/{foreign}": content.encode()}
