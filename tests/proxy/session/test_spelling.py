"""Which arguments are those that the model said, completed by a harness."""

from __future__ import annotations

import json

import msgspec
import pytest

from proxy.chat import Function, FunctionCall, Message, Tool, ToolCall
from proxy.session.spelling import is_completed
from proxy.session.turns import SampledTurns
from topics.calls.delta import Spelled

EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "replace_all": {"type": "boolean", "default": False},
        "count": {"type": "integer", "default": 1},
        "flags": {"default": [True, {"all": False}]},
        "questions": {"items": {"properties": {"many": {"default": False}}}},
    },
}
SCHEMA = json.dumps(EDIT).encode()


@pytest.mark.parametrize(
    ("told", "said", "is_it"),
    [
        ('{"replace_all":false,"path":"a"}', '{"path":"a"}', True),
        ('{"replace_all":false,"path":"a","count":1}', '{ "path" : "a" }', True),
        ('{"path":"a"}', '{"path":"a"}', True),
        ('{"questions":[{"q":1,"many":false}]}', '{"questions":[{"q":1}]}', True),
        ('{"replace_all":true,"path":"a"}', '{"path":"a"}', False),
        ('{"count":true,"path":"a"}', '{"path":"a"}', False),
        ('{"flags":[true,{"all":false}],"path":"a"}', '{"path":"a"}', True),
        ('{"flags":[1,{"all":false}],"path":"a"}', '{"path":"a"}', False),
        ('{"flags":[true,{"all":0}],"path":"a"}', '{"path":"a"}', False),
        ('{"path":"b","replace_all":false}', '{"path":"a"}', False),
        ('{"path":"a"}', '{"path":"a","replace_all":false}', False),
        ('{"path":"a","other":false}', '{"path":"a"}', False),
        ('{"questions":[{"many":false},{"many":false}]}', '{"questions":[{}]}', False),
        ('{"path":"a"}', '{"path":"a"', False),
    ],
)
def test_only_the_schemas_own_defaults_are_taken_for_added(told: str, said: str, is_it: bool) -> None:
    assert is_completed(told, said, SCHEMA) == is_it


def test_without_a_schema_nothing_is_taken_for_added() -> None:
    assert not is_completed('{"replace_all":false}', "{}", b"")
    assert not is_completed('{"replace_all":false}', "{}", b"[]")


def test_a_turn_that_a_harness_completed_is_put_back_by_its_calls_id() -> None:
    user = Message("user", "go")
    said = Message("assistant", "So.", None, [ToolCall("own", FunctionCall("edit", '{"path": "a"}'))])
    told = Message(
        "assistant", "So.", None, [ToolCall("own", FunctionCall("edit", '{"replace_all":false,"path":"a"}'))]
    )
    remembered = SampledTurns()
    remembered.add("c0", Spelled([user]).link, said)
    tools = [Tool(Function("edit", parameters=msgspec.Raw(SCHEMA)))]
    assert remembered.restore([user, told])[0] == [user, told]
    assert remembered.restore([user, told], tools)[0] == [user, said]
    assert remembered.unknown_turns([user, told], tools) == frozenset()
    assert remembered.restore([user, told])[0] == [user, said], "what was found out stands, as where no tools are told"
    for edited in (
        msgspec.structs.replace(told, content="Else."),
        msgspec.structs.replace(told, tool_calls=[ToolCall("new", told.tool_calls[0].function)]),
    ):
        assert remembered.restore([user, edited], tools)[0] == [user, edited]
