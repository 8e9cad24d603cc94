"""`polar export sft` on a lake whose accepted sessions are known: exact, the same bytes each time, and the trace's own tokens."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from polar.export.sft import writing
from polar.show.trajectory import line
from tests.polar.cli.commands import polar
from tests.polar.export.talks import SEARCH, Talk, turns, write
from topics.environment.settings import Settings
from topics.types.completion import Medium

GREEN = {"evaluation_output": "blob:sha256/00"}
RED = GREEN | {"evaluation_report": "blob:sha256/01"}
OF_A, OF_B = b'{"swe": {"repo": "org/a"}}', b'{"repository": "b"}'


def branched() -> Talk:
    """A session with a conversation and a sub-agent's, both trained; and a title, which isn't."""
    talk = turns("two.0", 2, first=700, metadata=OF_B, artifacts=GREEN)
    talk.call([{"role": "user", "content": "explore"}], [900, 901], [902], kind="subagent")
    talk.call([{"role": "user", "content": "a title"}], [950], [951], kind="title")
    return talk


def pictured() -> Talk:
    talk = Talk("picture.0", metadata=OF_B, artifacts=GREEN)
    talk.call([{"role": "user", "content": "look"}], [5, 6], [7], media=[Medium("00ff", position=0)])
    return talk


TALKS = {
    talk.build.session_id: talk
    for talk in (
        turns("fix.0", 2, first=100, metadata=OF_A, artifacts=GREEN),
        turns("fix.1", 2, first=100, metadata=OF_A, artifacts=GREEN),
        turns("fix.2", 3, first=200, metadata=OF_A, artifacts=GREEN, reward=1.5),
        turns("fix.3", 2, first=300, metadata=OF_A, artifacts=RED, reward=0.0),
        turns("fix.4", 2, first=400, metadata=OF_A, artifacts=RED),
        turns("fix.5", 2, first=500, metadata=OF_A, reward=None),
        turns("long.0", 9, first=600, metadata=OF_B, artifacts=GREEN),
        branched(),
        pictured(),
        Talk("nothing.0", artifacts=GREEN),
    )
}
ACCEPTED = {"fix": ["fix.2", "fix.0"], "two": ["two.0"]}
"""In the order of the files, with the rules of `RULES`."""
RULES = ("--tests-green", "--max-tokens", "40")
REFUSED = {"unrewarded": 1, "reward": 1, "tests": 1, "untrained": 1, "too_long": 1, "media": 1, "duplicate": 1}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    found = Settings(data=tmp_path / ".polar")
    write(found, list(TALKS.values()))
    return found.data


def export(data: Path, out: Path, *arguments: str) -> tuple[str, str]:
    code, printed, notes = polar("export", "sft", "--data", str(data), "--out", str(out), *RULES, *arguments)
    assert code == 0, notes
    return printed, notes


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def trained() -> dict[str, dict[str, Any]]:
    """The trainable traces of the accepted sessions, as `polar trajectories --format jsonl` prints them, by their id."""
    documents = [line(TALKS[session_id].trajectory()) for task in ACCEPTED.values() for session_id in task]
    return {trace["trace_id"]: trace for document in documents for trace in document["traces"]}


@pytest.mark.parametrize("layout", ["tokens", "parquet"])
def test_ids_and_labels_are_the_trace_s(data: Path, tmp_path: Path, layout: str) -> None:
    export(data, tmp_path / "out", "--format", layout)
    file = tmp_path / "out" / f"train.{'parquet' if layout == 'parquet' else 'jsonl'}"
    found = pq.read_table(file).to_pylist() if layout == "parquet" else rows(file)
    assert list(dict.fromkeys(row["session_id"] for row in found)) == [
        one for task in ACCEPTED.values() for one in task
    ]
    traces = trained()
    assert sorted(row["trace_id"] for row in found) == sorted(traces)
    for row in found:
        trace = traces[row["trace_id"]]
        assert row["input_ids"] == trace["token_ids"]
        assert [label != -100 for label in row["labels"]] == [mask == 1 for mask in trace["loss_mask"]]
        assert {label for label, token in zip(row["labels"], row["input_ids"], strict=True) if label != token} <= {-100}


def test_messages_are_the_last_call_s_with_its_answer(data: Path, tmp_path: Path) -> None:
    export(data, tmp_path / "out")
    found = {row["trace_id"]: row for row in rows(tmp_path / "out" / "train.jsonl")}
    assert sorted(found) == sorted(trained())
    main = found["fix.0/fix.0-1"]
    assert [(one["role"], one["content"]) for one in main["messages"]] == [
        ("user", "task 100"),
        ("assistant", "answer 0"),
        ("user", "go on 0"),
        ("assistant", "answer 1"),
    ]
    assert main["tools"] == [SEARCH]
    assert (main["task_id"], main["repository"], main["reward"]) == ("fix", "org/a", 1.0)
    helper = found["two.0/two.0-2"]
    assert [one["content"] for one in helper["messages"]] == ["explore", "answer 2"]
    assert "tools" not in helper


def test_the_card_counts_what_was_accepted_and_why_the_rest_was_not(data: Path, tmp_path: Path) -> None:
    printed, notes = export(data, tmp_path / "out", "--split", "train=0.5,val=0.5")
    table = [row.split() for row in printed.splitlines()[2:]]
    assert table == [
        ["org/a", "2", "6", "33.3%"],
        ["b", "1", "3", "33.3%"],
        ["(none)", "0", "1", "0.0%"],
        ["total", "3", "10", "30.0%"],
    ]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "3 of 10 sessions were accepted; 2 of 5 tasks have one." in card
    assert "| total | 3 | 10 | 30.0% |" in card
    assert all(f"| `{reason}` | " in card for reason in REFUSED)
    assert Counter(REFUSED).total() == 10 - 3
    assert all(f"{count} {reason}" in notes for reason, count in REFUSED.items())
    _, header, _ = card.split("---\n", 2)
    files = yaml.safe_load(header)["configs"][0]["data_files"]
    assert files == [{"split": "train", "path": "train.jsonl"}, {"split": "val", "path": "val.jsonl"}]
    tasks = [{row["task_id"] for row in rows(tmp_path / "out" / one["path"])} for one in files]
    assert tasks[0] | tasks[1] == {"fix", "two"}
    assert not tasks[0] & tasks[1]


def test_other_rules_move_no_task_into_another_split(tmp_path: Path) -> None:
    found = Settings(data=tmp_path / ".polar")
    rewards = [1.0, 0.5, 0.0, 1.0, 0.25] * 6
    write(found, [turns(f"t{at}.0", 1, first=100 + 10 * at, reward=reward) for at, reward in enumerate(rewards)])
    split_of: dict[str, set[str]] = {}
    for least in ("0", "0.4", "1"):
        out = tmp_path / least
        polar(
            "export", "sft", "--data", str(found.data), "--out", str(out), "--min-reward", least,
            "--split", "train=0.5,val=0.5",
        )  # fmt: skip
        for split in ("train", "val"):
            for row in rows(out / f"{split}.jsonl"):
                split_of.setdefault(row["task_id"], set()).add(split)
    assert len(split_of) == len(rewards)
    assert {len(splits) for splits in split_of.values()} == {1}


def test_the_card_counts_sessions_whose_tests_cannot_be_known_to_be_all_green(data: Path, tmp_path: Path) -> None:
    export(data, tmp_path / "out", "--min-reward", "0")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Accepted sessions with another reward than 1, which such tests alone don't give: 1." in card


def test_a_cap_takes_the_best(data: Path, tmp_path: Path) -> None:
    _, notes = export(data, tmp_path / "out", "--per-task", "1")
    assert {row["session_id"] for row in rows(tmp_path / "out" / "train.jsonl")} == {"fix.2", "two.0"}
    assert "2 cap" in notes, "the duplicate of a capped session is capped, too"


@pytest.mark.parametrize("layout", ["messages", "parquet"])
def test_two_exports_are_equal_also_over_an_interrupted_one(
    data: Path, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--format", layout, "--split", "train=0.5,val=0.5", "--seed", "7")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    export(data, whole, *options)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writing, "examples", interrupted)
        polar("export", "sft", "--data", str(data), "--out", str(broken), *RULES, *options)
    assert {path.name for path in broken.iterdir()} == {f"{path.name}.part" for path in whole.iterdir()} - {
        "README.md.part"
    }
    export(data, broken, *options)
    assert contents(broken) == contents(whole)
    export(data, broken, *options)
    assert contents(broken) == contents(whole)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_with_something_else_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "val.jsonl").write_text("mine")
    code, _, notes = polar("export", "sft", "--data", str(data), "--out", str(tmp_path))
    assert code == 2
    assert "it holds .polar, which this export doesn't write; name a new folder" in notes
    assert not (tmp_path / "README.md").exists()


def test_nothing_to_choose_from_or_nothing_accepted(data: Path, tmp_path: Path) -> None:
    assert polar("export", "sft", "--data", str(data), "--out", str(tmp_path / "a"), "--task", "nobody")[0] == 3
    code, printed, _ = polar("export", "sft", "--data", str(data), "--out", str(tmp_path / "b"), "--min-reward", "9")
    assert (code, printed.split()[-3:]) == (1, ["0", "10", "0.0%"])
