"""docs/builder.md: its builder works as it stands there, and its tables list what there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from consumers.builders.base import Builder, BuiltFrom
from consumers.building.running import off_loop
from consumers.token_tree.assembly import trace, trajectory
from consumers.token_tree.tree import grow
from tests.consumers.token_tree.transcripts import Log, build_record, lines
from topics.environment import registry
from topics.types.errors import InputError
from topics.types.token_tree import Branch, Drift, Masked
from topics.types.trajectory import Trajectory

PAGE = (Path(__file__).parents[3] / "docs" / "builder.md").read_text()


def codes(title: str) -> list[str]:
    """What the first column of the table under a heading names, in order."""
    section = PAGE.split(f"# {title}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return [code for row in rows[2:] for code in re.findall(r"`([\w.]+)`", row)]


def test_every_reason_stands_in_its_table_in_its_order() -> None:
    assert codes("Why a call branches") == [code.value for code in Branch]
    assert codes("How much a history drifted") == [code.value for code in Drift]
    assert codes("Why a token is masked") == [code.value for code in Masked]


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's builder as a module that can be imported, and what a task would call it."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_builders.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_builders", raising=False)
    return "my_builders:LastAnswer"


def session() -> Log:
    log = Log()
    log.call("a", "sys hi", "hello")
    log.call("s", "sub job", "found it", kind="subagent")
    log.call("b", "sys hi hello tool", "done")
    return log


async def test_the_page_s_builder_trains_the_way_to_the_last_answer(name: str) -> None:
    record = build_record(builder=name, builder_config=b'{"kind": "main"}')
    built: Trajectory = await off_loop(BuiltFrom(record, session().calls))
    assert lines(built) == ["sys hi [hello] tool [done]"]
    assert built.stats.masked_tokens == {"no_trace": 2}
    assert built.stats.sampled_tokens == built.stats.trainable_tokens + 2


def test_the_page_s_builder_refuses_settings_that_it_has_not(name: str) -> None:
    builder: type[Builder] = registry.load(registry.Kind.BUILDER, name)
    with pytest.raises(InputError, match=r"builder\.config\.kinds: no such setting of this builder; there are: kind"):
        builder(kinds="main")
    with pytest.raises(InputError, match=r"builder\.config\.kind: must be a kind of call"):
        builder(kind=3)
    assert lines(session().build(builder(kind="title"))) == []


def test_a_builder_that_would_train_a_token_twice_is_refused() -> None:
    source = BuiltFrom(build_record(), session().calls)
    tree = grow(source.calls, source.disowned)
    twice = trace(source, tree, 0, tree.sampled[0])
    with pytest.raises(ValueError, match=r"node 1 is trained twice"):
        trajectory(source, tree, [twice, twice])
