"""TaskRequests come from files as they stand there, or an error names the place."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from polar.cli import documents
from topics.types.errors import InputError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.lists(st.dictionaries(TEXT, VALUES, max_size=3), min_size=1, max_size=3)


def read(tmp_path: Path, name: str, text: str | bytes) -> list[documents.Document]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return documents.read(str(path))


@given(BODIES)
def test_every_format_gives_the_same_bodies(tmp_path_factory: pytest.TempPathFactory, bodies: list[Any]) -> None:
    tmp_path = tmp_path_factory.mktemp("documents")
    texts = {
        "a.json": json.dumps(bodies),
        "a.jsonl": "\n".join(json.dumps(body, ensure_ascii=False) for body in bodies),
        "a.yaml": yaml.safe_dump_all(bodies),
    }
    for name, text in texts.items():
        assert [document.body for document in read(tmp_path, name, text)] == bodies, name


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{"task_id": "a"}', 1),
        ('{\n  "task_id": "a"\n}\n', 1),
        ('[{"task_id": "a"},\n {"task_id": "b"}]', 2),
        ("\ntask_id: a\n---\ntask_id: b\n", 2),
        ('{"task_id": "a"}\n\n{"task_id": "b"}\n', 2),
        ("task_id: a\n---\ntask_id: b\n---\n- task_id: c\n- task_id: d\n", 4),
    ],
)
def test_standard_input_is_read_by_its_look(monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    for read_or_stream in (documents.read, documents.stream):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        found = [document.body for document in read_or_stream("-")]
        assert found == [{"task_id": name} for name in "abcd"[:count]]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"task_id": "a",\n "instruction": }', "a.json, line 2, column 17: not JSON"),
        ("a.json", '{"a": 1, "b": 2, "a": 3}', "the field 'a' appears twice"),
        ("a.json", '{"a": NaN}', "NaN is not a JSON number"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "3", "expected a TaskRequest, a mapping of fields (got 3)"),
        ("a.json", '{"metadata": {"x": "\\ud800"}}', "metadata.x: half of a surrogate pair"),
        ("a.jsonl", '{"task_id": "a"}\n{"task_id": \n', "a.jsonl, line 2, column"),
        ("a.jsonl", '{"task_id": "a"}\n"b"\n', "a.jsonl, line 2: expected a TaskRequest"),
        ("a.yaml", "task_id: a\n---\ntask_id: [b\nc: d\n", "a.yaml, line 4"),
        ("a.yaml", "a: 1\nb: 2\na: 3\n", "the field 'a' appears twice"),
        ("a.yaml", "task_id: a\nmetadata:\n  day: 2026-01-02\n", "metadata.day: JSON has no date; put it in quotes"),
        ("a.yaml", "task_id: a\nmetadata: {1: x}\n", "metadata: a field's name is a string; put it in quotes (got 1)"),
        ("a.yaml", "metadata: {x: .inf}\n", "metadata.x: must be a finite number (got inf)"),
        ("a.yaml", "a: !!python/object:os.system x\n", "not YAML"),
        ("a.yaml", "", "holds no TaskRequest"),
        ("a.jsonl", "\n\n", "holds no TaskRequest"),
        ("a.json", b"\xff\xfe{}", "not UTF-8 at byte 0"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, name, text)
    assert said in str(refused.value)


def test_a_line_separator_within_a_json_string_ends_no_line(tmp_path: Path) -> None:
    line = json.dumps({"instruction": "a\u2028b\x85c"}, ensure_ascii=False)
    assert [document.body for document in read(tmp_path, "a.jsonl", line)] == [{"instruction": "a\u2028b\x85c"}]


# --- one by one ----------------------------------------------------------------------------------------------------------------


class Pipe(io.RawIOBase):
    """Lines that come one at a time; how many were asked for is counted."""

    def __init__(self, lines: list[bytes]) -> None:
        self.asked = 0
        self._lines = lines

    def __iter__(self) -> Pipe:
        return self

    def __next__(self) -> bytes:
        self.asked += 1
        if not self._lines:
            raise StopIteration
        return self._lines.pop(0)


def test_json_lines_of_a_pipe_are_read_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe([b'{"task_id": "a"}\n', b"\n", b'{"task_id": "b"}\n', b"{]\n"])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))
    stream = documents.stream("-")
    assert (next(stream).body, pipe.asked) == ({"task_id": "a"}, 1)
    found = next(stream)
    assert (found.body, found.place, pipe.asked) == ({"task_id": "b"}, "standard input, line 3", 3)
    with pytest.raises(InputError, match="standard input, line 4"):
        next(stream)


@pytest.mark.parametrize("name", ["a.jsonl", "a.yaml", "a.json"])
def test_a_file_gives_the_same_one_by_one(tmp_path: Path, name: str) -> None:
    whole = read(tmp_path, name, '{"task_id": "a"}' + ('\n{"task_id": "b"}' if name == "a.jsonl" else ""))
    assert list(documents.stream(str(tmp_path / name))) == whole
