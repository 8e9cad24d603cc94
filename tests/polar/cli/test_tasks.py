"""`polar tasks`: from a set in Harbor's format to a file that `polar submit` takes."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from polar.cli import documents
from tests.polar.cli.commands import polar
from tests.polar.tasks.writing import IN_PLACE, write
from topics.types.task import TaskRequest, parse


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    for name, level in (("a", "easy"), ("b", "hard"), ("c", "hard")):
        write(
            tmp_path / "set" / name,
            {"agent": {"timeout_sec": 60}, "metadata": {"level": level}},
            instruction_md=f"{name}!",
            environment__Dockerfile="FROM debian:12\nUSER ana\n",
        )
    return str(tmp_path / "set")


@pytest.fixture
def template(tmp_path: Path) -> str:
    file = tmp_path / "template.yaml"
    file.write_text(yaml.safe_dump(IN_PLACE))
    return str(file)


def requests(file: Path) -> list[TaskRequest]:
    return [parse(document.body) for document in documents.read(str(file))]


def test_list_prints_the_tasks_and_what_refuses_them(tasks: str) -> None:
    code, out, _ = polar("tasks", "list", tasks, "--where", "metadata.level=hard", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["name"], row["task_id"], row["agent_s"], row["metadata"]) for row in rows] == [
        ("b", "b", 60.0, {"level": "hard"}),
        ("c", "c", 60.0, {"level": "hard"}),
    ]
    assert rows[0]["refused"] == ["environment/Dockerfile"]
    code, out, _ = polar("tasks", "list", tasks, "--limit", "1")
    assert (code, "environment/Dockerfile" in out) == (0, True)


def test_list_has_a_template_for_rows(tmp_path: Path) -> None:
    rows, template = tmp_path / "sums.jsonl", tmp_path / "template.yaml"
    rows.write_text('{"a": 1, "number": 7}\n')
    template.write_text('task_id: "sum-{{number}}"\ninstruction: "Add {{a}} and 1."\n')

    def listed(*more: str) -> Any:
        ((row,),) = [json.loads(polar("tasks", "list", str(rows), *more, "--format", "json")[1])]
        return row["name"], row["task_id"], row["refused"]

    assert listed() == ("row-1", "row-1", ["instruction"])
    assert listed("--template", str(template)) == ("row-1", "sum-7", [])


def test_what_a_task_request_refuses_is_listed_and_reported(tasks: str, tmp_path: Path) -> None:
    """Under the task's own name, also where a template names no agent and the task gives its agent something."""
    config = {
        "environment": {"mcp_servers": [{"name": "scales", "transport": "stdio", "command": "scales"}]},
        "verifier": {"environment_mode": "separate"},
        "artifacts": ["/x", {"source": "/tmp/out"}],
    }
    write(Path(tasks) / "b", config, environment__Dockerfile="FROM debian:12\n")
    write(Path(tasks) / "c", environment__Dockerfile="FROM debian:12\n")
    listed = json.loads(polar("tasks", "list", tasks, "--format", "json")[1])
    assert [row["refused"] for row in listed] == [["environment/Dockerfile"], ["artifacts.1.source"], []]
    out = ("--harness", "claude_code", "--out", str(tmp_path / "t.jsonl"), "--skip-refused", "--format", "json")
    code, text, err = polar("tasks", "import", tasks, *out)
    report = json.loads(text)
    counts = {(one["name"], one["outcome"]): one["tasks"] for one in report["fields"]}
    assert (code, report["imported"]) == (2, 1)
    assert counts["artifacts.1.source", "refused"] == counts["environment/Dockerfile", "refused"] == 1
    assert counts["environment/Dockerfile", "carried"] == 1
    assert ("environment.mcp_servers", "carried") not in counts
    assert "b: artifacts.1.source: /tmp/out is refused: an evaluation gets a /tmp of its own" in err


def test_list_draws_the_same_tasks_for_the_same_seed(tasks: str) -> None:
    drawn = [
        [row["name"] for row in json.loads(polar("tasks", "list", tasks, "--shuffle", *more, "--format", "json")[1])]
        for more in (("--seed", "3"), ("--seed", "3"), ("--seed", "3", "--limit", "2"))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[0][:2]


def test_list_names_an_unreadable_task_and_lists_the_others(tasks: str) -> None:
    (Path(tasks) / "b/task.toml").write_text("[agent]\ntimout_sec = 3")
    code, out, err = polar("tasks", "list", tasks, "--format", "json")
    assert (code, [row["name"] for row in json.loads(out)]) == (2, ["a", "c"])
    assert "agent.timout_sec: no such field; do you mean timeout_sec? (got 3)" in err


def test_show_says_what_each_field_becomes(tasks: str) -> None:
    code, out, _ = polar("tasks", "show", tasks, "b", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["task"]["instruction"] == "b!"
    assert {"name": "agent.timeout_sec", "value": 60.0, "outcome": "carried", "becomes": "timeouts.run"} in found[
        "fields"
    ]
    code, out, _ = polar("tasks", "show", f"{tasks}/b")
    assert code == 0
    assert "timeouts.run" in out
    assert "b!" in out


def test_show_says_what_a_task_request_refuses(tasks: str, template: str) -> None:
    (Path(tasks) / "b/task.toml").write_text("[agent]\ntimeout_sec = 1e6")
    fields = json.loads(polar("tasks", "show", tasks, "b", "--template", template, "--format", "json")[1])["fields"]
    assert [one["name"] for one in fields if one["outcome"] == "refused"] == ["timeouts.run"]


def test_show_asks_for_a_task(tasks: str) -> None:
    for name in ([], ["z"]):
        code, _, err = polar("tasks", "show", tasks, *name)
        assert (code, "name one of the set's 3 tasks: a, b, c" in err, "None" in err) == (2, True, False)


@pytest.mark.parametrize("suffix", ["jsonl", "yaml"])
def test_import_writes_what_submit_takes(tasks: str, template: str, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"tasks.{suffix}"
    code, out, err = polar("tasks", "import", tasks, "--template", template, "--out", str(file), "--format", "json")
    assert (code, err) == (0, "")
    assert [(one.task_id, one.instruction, one.timeouts.run) for one in requests(file)] == [
        ("a", "a!", 60.0),
        ("b", "b!", 60.0),
        ("c", "c!", 60.0),
    ]
    report: dict[str, Any] = json.loads(out)
    assert (report["tasks"], report["imported"]) == (3, 3)
    assert {"name": "agent.timeout_sec", "outcome": "carried", "becomes": "timeouts.run", "tasks": 3} in report[
        "fields"
    ]


def test_import_refuses_by_name_and_writes_nothing(tasks: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    code, out, err = polar("tasks", "import", tasks, "--harness", "pi", "--out", str(file))
    assert (code, file.exists()) == (2, False)
    assert "0 of 3 tasks imported" in out
    assert "a and 2 more: environment/Dockerfile: line 2: USER: every program of a session runs as" in err
    assert err.endswith("nothing was written\n")


def test_import_skips_refused_tasks_if_asked(tasks: str, template: str, tmp_path: Path) -> None:
    (Path(tasks) / "b/task.toml").write_text('[environment]\ngpu_types = ["H100"]')
    (Path(tasks) / "c/task.toml").write_text("[agent]\ntimeout_sec = 0")
    file = tmp_path / "tasks.jsonl"
    arguments = ("tasks", "import", tasks, "--template", template, "--out", str(file))
    assert polar(*arguments)[0] == 2
    assert not file.exists()
    code, out, err = polar(*arguments, "--skip-refused")
    assert code == 2
    assert [one.task_id for one in requests(file)] == ["a"]
    assert "1 of 2 tasks imported" in out
    refusal = "no sandbox chooses GPUs by type; name a pool that has them in the template"
    assert f'b: environment.gpu_types: {refusal} (got ["H100"])' in err
    assert "agent.timeout_sec" in err


def test_two_tasks_with_one_name_are_not_one_task(tmp_path: Path, template: str) -> None:
    for name in ("x", "y"):
        write(tmp_path / name)
    entries = [{"name": "same", "path": name} for name in ("x", "y")]
    (tmp_path / "registry.json").write_text(json.dumps([{"name": "s", "version": "1", "tasks": entries}]))
    code, _, err = polar("tasks", "import", str(tmp_path), "--template", template, "--out", str(tmp_path / "t.jsonl"))
    assert (code, "same: name: another task of the set has the same name" in err) == (2, True)


def test_a_value_from_the_environment_is_named_and_its_file_private(
    tasks: str, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_TOKEN", "secret")
    (Path(tasks) / "a/task.toml").write_text('[environment.env]\nTOKEN = "${THEIR_TOKEN}"')
    file = tmp_path / "t.jsonl"
    arguments = ("tasks", "import", f"{tasks}/a", "--template", template, "--out", str(file))
    code, _, err = polar(*arguments)
    assert (code, "give it by --env THEIR_TOKEN" in err) == (2, True)
    code, out, err = polar(*arguments, "--env", "THEIR_TOKEN")
    assert (code, "secret" in out + err) == (0, False)
    assert requests(file)[0].runtime.env == {"TOKEN": "secret"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert polar(*arguments, "--env", "NOBODY_HAS_IT")[0] == 2


def test_sources_of_a_template_start_at_its_folder(tasks: str, tmp_path: Path) -> None:
    upload = {"type": "upload_file", "source": "x.py", "target": "x.py"}
    folder = tmp_path / "templates"
    folder.mkdir()
    actions = [upload, {**upload, "source": "{task}/instruction.md"}]
    (folder / "t.json").write_text(json.dumps({**IN_PLACE, "runtime": {"prepare": actions}}))
    file = tmp_path / "t.jsonl"
    polar("tasks", "import", tasks, "--template", str(folder / "t.json"), "--out", str(file))
    assert [[action.source for action in one.runtime.prepare] for one in requests(file)] == [
        [str(folder / "x.py"), f"{tasks}/{name}/instruction.md"] for name in ("a", "b", "c")
    ]


@pytest.mark.parametrize("prepare", [5, [5], [{"source": 5}], "x"])
def test_bad_actions_of_a_template_are_refused_by_name(tasks: str, tmp_path: Path, prepare: Any) -> None:
    (tmp_path / "t.json").write_text(json.dumps({**IN_PLACE, "runtime": {"prepare": prepare}}))
    arguments = ("--template", str(tmp_path / "t.json"), "--out", str(tmp_path / "t.jsonl"))
    code, _, err = polar("tasks", "import", tasks, *arguments)
    assert (code, "a and 2 more: runtime.prepare" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "t.txt", "--harness", "pi"], "--out: must end with one of .jsonl, .ndjson, .yaml, .yml"),
        (
            ["--out", "t.jsonl"],
            "--harness: a task of a set names no agent; give --harness, or an agent in --template\n",
        ),
        (["--out", "t.jsonl", "--harness", "pi", "--where", "x"], "--where: must be FIELD=PATTERN"),
        (["--out", "t.jsonl", "--harness", "pi", "--dataset", "d"], "--dataset: "),
        (["--out", "t.jsonl", "--harness", "pi", "--split", "train"], "--split: "),
        (["--out", "t.jsonl", "--template", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_options_are_named(tasks: str, arguments: list[str], message: str) -> None:
    code, _, err = polar("tasks", "import", tasks, *arguments)
    assert (code, message in err) == (2, True)


@pytest.mark.parametrize(
    "part", ["agent: pi", "runtime: [1]", "metadata: {harbor: 1}", "task_id: x", "[]", "{}\n---\n{}"]
)
def test_a_bad_template_is_named(tasks: str, tmp_path: Path, part: str) -> None:
    (tmp_path / "t.yaml").write_text(part)
    code, _, err = polar(
        "tasks", "import", tasks, "--harness", "pi", "--template", str(tmp_path / "t.yaml"), "--out", "x.jsonl"
    )
    assert code == 2
    assert "template" in err or "t.yaml" in err


def test_an_unwritable_file_is_named(tasks: str, template: str, tmp_path: Path) -> None:
    out = str(tmp_path / "nowhere" / "t.jsonl")
    code, _, err = polar("tasks", "import", tasks, "--template", template, "--out", out)
    assert (code, "--out: can't be written: No such file or directory" in err) == (2, True)


def test_control_characters_of_a_set_do_not_reach_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / "x", {"metadata": {"a": "\u202e"}}, instruction_md="\x1b[2J")
    for arguments in (["list", str(tmp_path)], ["show", str(tmp_path)]):
        _, out, err = polar("tasks", *arguments)
        assert "\x1b" not in out + err
        assert "\u202e" not in out + err


def test_only_the_listed_tasks_are_imported(tasks: str, template: str, tmp_path: Path) -> None:
    ids, file = tmp_path / "usable", tmp_path / "t.jsonl"
    ids.write_text("c\na\n")
    arguments = ("tasks", "import", tasks, "--template", template, "--out", str(file), "--only", str(ids))
    assert polar(*arguments)[0] == 0
    assert [one.task_id for one in requests(file)] == ["a", "c"]
    ids.write_text("c\nz\n")
    code, _, err = polar(*arguments)
    assert (code, "--only: it lists tasks that the set lacks: z" in err) == (2, True)
    code, _, err = polar(*arguments[:-1], str(tmp_path / "nowhere"))
    assert (code, "--only: can't be read" in err) == (2, True)


def test_the_option_that_leaves_no_task_is_named(tasks: str, tmp_path: Path) -> None:
    ids, out = tmp_path / "usable", ("--harness", "pi", "--out", str(tmp_path / "t.jsonl"))
    ids.write_text("")
    (Path(tasks) / "splits.json").write_text('{"val": []}')
    by_only = f"polar: none of the 3 tasks of the set is selected: --only {ids} lists no id\n"
    assert polar("tasks", "list", tasks, "--only", str(ids), "--format", "json") == (0, "[]\n", by_only)
    code, _, err = polar("tasks", "import", tasks, *out, "--only", str(ids))
    assert (code, err) == (2, f"{by_only}polar: nothing was written\n")
    ids.write_text("a c")
    wheres = ("--where", "metadata.level=none", "--where", "agent.timeout_sec=60")
    code, _, err = polar("tasks", "list", tasks, *wheres, "--only", str(ids))
    by_where = (
        f"polar: none of the 2 tasks that --only {ids} lists matches --where metadata.level=none and --where agent"
    )
    assert (code, err.startswith(by_where)) == (0, True)
    code, _, err = polar("tasks", "list", tasks, "--split", "val")
    assert (code, err) == (0, "polar: no task is selected: --split val names none\n")


def test_a_check_reports_what_needs_no_system(tasks: str, tmp_path: Path) -> None:
    """Tasks without a solution, those that are refused, and those that can't be read."""
    file = tmp_path / "usable"
    (Path(tasks) / "b/solution").mkdir()
    (Path(tasks) / "b/solution/solve.sh").write_text("true")
    code, out, err = polar("tasks", "check", tasks, "--format", "json", "--write", str(file), "--run", "night")
    assert (code, file.read_text()) == (1, "")
    found = {row["task_id"]: row for row in json.loads(out)}
    assert {name: row["verdict"] for name, row in found.items()} == {
        "a": "no_solution",
        "b": "error",
        "c": "no_solution",
    }
    assert found["b"]["reason"].startswith("environment/Dockerfile: line 2: USER: every program")
    assert (found["a"]["solution"], found["a"]["nothing"]) == (None, None)
    assert "no verdict" not in err
    (Path(tasks) / "a/task.toml").write_text("[agent]\ntimout_sec = 3")
    code, out, err = polar("tasks", "check", tasks)
    assert (code, "agent.timout_sec: no such field" in err) == (2, True)
    assert "2 of 2 tasks checked in the run check-" in out
    assert "1 error, 1 no_solution" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--write", "nowhere/file"], "--write: can't be written"),
        (["--run", "a b"], "--run: must match"),
        (["--where", "metadata.level=none"], "none of the 3 tasks of the set matches --where metadata.level=none"),
    ],
)
def test_bad_options_of_a_check_are_named(tasks: str, arguments: list[str], message: str) -> None:
    code, _, err = polar("tasks", "check", tasks, *arguments)
    assert (code, message in err) == (2, True)
