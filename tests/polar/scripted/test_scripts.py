"""Scripts: reading them, refusing bad ones, and choosing the next turn."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar import scripted
from polar.scripted.conversation import Call, Turn
from polar.scripted.faults import Status
from polar.scripted.scripts import Script, ScriptError, ScriptTurn, Variant, choose, load


def script(name: str, match: str, *variants: list[str]) -> Script:
    """A script whose variants say the given texts."""
    return Script(name, match, tuple(Variant(tuple(ScriptTurn(text) for text in texts)) for texts in variants))


def said(scripts: list[Script], turns: list[Turn], session: str | None = None, seed: int = 0) -> str | None:
    """The text of the next turn."""
    cue = choose(scripts, turns, session, seed)
    return cue.turn.text if cue else None


USER = Turn("user", "mend the slugs")
ANSWER = Turn("assistant", "…")


def test_the_first_script_that_matches_the_opening_plays_turn_by_turn_to_its_end() -> None:
    scripts = [script("a", "^slugs", ["no"]), script("b", "slugs", ["one", "two"]), script("c", "", ["other"])]
    system = Turn("system", "You know: ^slugs")
    assert said(scripts, [system, USER]) == "one"
    assert said(scripts, [USER, ANSWER, Turn("tool", "slugs")]) == "two"
    assert said(scripts, [USER, ANSWER, ANSWER, Turn("tool", "")]) == "two"
    assert said(scripts, [USER, ANSWER, USER, ANSWER, USER]) is None
    assert said(scripts, [Turn("user", "hi"), ANSWER, Turn("user", "slugs")]) is None
    assert said(scripts[:2], [Turn("user", "hi")]) is None


def test_a_system_prompt_tells_side_requests_and_sub_agents_from_the_main_one() -> None:
    title = Script("title", "slugs", script("", "", ["Slugs"]).variants, system="(?i)title")
    scripts = [title, script("main", "slugs", ["one"])]
    for role in ("system", "developer"):
        assert said(scripts, [Turn(role, "Write a title."), USER]) == "Slugs"
    assert said(scripts, [USER, ANSWER, Turn("system", "title")]) is None
    assert said(scripts, [Turn("system", "You are an agent."), USER]) == "one"
    assert said(scripts, [Turn("user", "title: slugs")]) == "one"


def test_samples_of_a_task_go_through_the_variants_in_turn() -> None:
    scripts = [script("s", "", ["0"], ["1"], ["2"])]
    assert [said(scripts, [USER], f"task-7.{index}") for index in range(5)] == ["0", "1", "2", "0", "1"]
    assert [said(scripts, [USER], f"task-7.{index}", seed=1) for index in range(3)] == ["1", "2", "0"]


def test_other_sessions_are_spread_by_hash_and_keep_to_their_variant() -> None:
    scripts = [script("s", "", ["0", "0+"], ["1", "1+"])]
    sessions = [f"session-{number}" for number in range(40)]
    first = [said(scripts, [USER], session) for session in sessions]
    assert set(first) == {"0", "1"}
    assert [said(scripts, [USER, ANSWER, USER], session) for session in sessions] == [f"{one}+" for one in first]
    assert [said(scripts, [USER], session, seed=5) for session in sessions] != first
    assert said(scripts, [USER]) in ("0", "1")


def spoken(scripts: list[Script], session: str | None, seed: int) -> list[str]:
    """All that a session hears, asking turn by turn to the end."""
    turns, heard = [USER], []
    while (text := said(scripts, turns, session, seed)) is not None:
        heard.append(text)
        turns += [Turn("assistant", text), Turn("tool", "…")]
    return heard


def turn(text: str, *ways: tuple[ScriptTurn, ...]) -> ScriptTurn:
    return ScriptTurn(text, instead=ways)


TEXTS = st.sampled_from("abcdef")
TURNS = st.recursive(
    TEXTS.map(turn),
    lambda inner: st.builds(
        lambda text, ways: turn(text, *ways),
        TEXTS,
        st.lists(st.lists(inner, max_size=3).map(tuple), max_size=3),
    ),
    max_leaves=8,
)


def ways_through(turns: Sequence[ScriptTurn]) -> set[tuple[str, ...]]:
    """All that turns may come to, by the rule of the README."""
    through: set[tuple[str, ...]] = {()}
    for each in turns:
        here = {(each.text,)}.union(*map(ways_through, each.instead))
        through = {before + after for before in through for after in here}
    return through


@given(turns=st.lists(TURNS, min_size=1, max_size=3), session=st.none() | st.text(), seed=st.integers(0, 2**32))
def test_a_session_keeps_to_one_way_through_the_turns_and_its_alternatives(
    turns: list[ScriptTurn], session: str | None, seed: int
) -> None:
    scripts = [Script("s", "", (Variant(tuple(turns)),))]
    heard = spoken(scripts, session, seed)
    assert tuple(heard) in ways_through(turns)
    assert spoken(scripts, session, seed) == heard


def test_sessions_and_seeds_draw_each_alternative_about_as_often_as_the_turn_itself() -> None:
    turns = (turn("a", (turn("b"), turn("c")), ()), turn("d", (turn("e"),)))
    scripts = [Script("s", "", (Variant(turns),))]
    ways = ways_through(turns)
    assert len(ways) == 6
    for sessions, seeds in ((300, 1), (1, 300)):
        heard = Counter(
            tuple(spoken(scripts, f"task.{session}", seed)) for session in range(sessions) for seed in range(seeds)
        )
        assert heard.keys() == ways
        assert min(heard.values()) > 20, "50 each, if they are equally likely"


def test_the_readme_shows_a_script_that_loads(tmp_path: Path) -> None:
    readme = Path(scripted.__file__).with_name("README.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert example
    (tmp_path / "b.yaml").write_text(example[1])
    (tmp_path / "a.json").write_text('{"name": "j", "match": "x", "variants": [{"turns": [{"text": "y"}]}]}')
    (tmp_path / "notes.txt").write_text("no script")
    first, mends = load([tmp_path])
    assert (first.name, mends.name) == ("j", "fix-slugify")
    looks = mends.variants[0].turns[0].as_turn()
    assert looks == Turn("assistant", "I'll look at the code first.", "", (Call("read", '{"path":"slug.py"}'),))
    assert mends.variants[0].turns[1].delay_s == 0.2


def test_arguments_are_compact_json_or_the_very_string_and_a_turn_may_have_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    text = """
        name: s
        match: ""
        variants:
          - turns:
              - calls: [{name: f, arguments: {é: [1, "a"]}}, {name: g, arguments: '{"a" : 1'}, {name: h}]
                fault: {kind: status, status: 503, times: 2}
        ---
        {name: t, match: "", variants: [{turns: [{}]}]}
        """
    file.write_text(textwrap.dedent(text))
    (turn,) = load([file])[0].variants[0].turns
    assert [call.arguments for call in turn.as_turn().calls] == ['{"é":[1,"a"]}', '{"a" : 1', "{}"]
    assert turn.fault == Status(status=503, times=2)
    assert len(load([file, file])) == 4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: s\nmatch: x\nvariants: [{turns: [{text: hi, delay_s: soon}]}]", r"delay_s`; it has 'soon'"),
        ("name: s\nmatch: x\nvariants: [{turns: [{txt: hi}]}]", r"`txt`.*turns\[0\]`; it has {'txt': 'hi'}"),
        ("name: s\nmatch: '('\nvariants: [{turns: [{}]}]", r"`\$.match` is not a regular expression: '\('"),
        ("name: s\nmatch: x\nvariants: []", r"variants`; it has \[\]"),
        ("name: s\nvariants: [{turns: [{}]}]", r"missing required field `match`"),
        ("name: s\nmatch: x\nvariants: [{turns: [{fault: {kind: burn}}]}]", r"'burn'.*fault.kind`"),
        (
            "name: s\nmatch: x\nvariants: [{turns: [{calls: [{name: f, arguments: {on: 1}}]}]}]",
            r"got `bool`.*; it has ",
        ),
        ("name: s\nmatch: x\nvariants: [{turns: [{calls: [{name: f, arguments: {a: 2020-01-01}}]}]}]", "aren't JSON"),
        ("name: s\nmatch: x\nvariants: [{turns: [{or: [{text: hi}]}]}]", r"or`?\[0\]`; it has {'text': 'hi'}"),
        (
            "name: s\nmatch: x\nvariants: [{turns: [{or: [[{calls: [{name: f, arguments: {a: 2020-01-01}}]}]]}]}]",
            "aren't JSON",
        ),
        ("name: [", "not readable as YAML"),
        ("", "contains no script"),
        ("---\n", "got `null`"),
    ],
)
def test_a_bad_script_is_refused_with_file_field_and_value(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ScriptError, match=complaint) as refusal:
        load([file])
    assert str(file) in str(refusal.value)


def test_a_path_without_scripts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="no scripts in this folder"):
        load([tmp_path])
    with pytest.raises(ScriptError, match="no such file or folder"):
        load([tmp_path / "absent.yaml"])
