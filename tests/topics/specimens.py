"""Records to test with: one of each type with every field set, and hypothesis strategies for any record, both drawn from the types."""

from enum import Enum
from functools import partial
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from topics import stages
from topics.contract import catalogue
from topics.contract.topic import Topic
from topics.types.session import Stage

TOPICS: tuple[Topic, ...] = (*catalogue.FIXED, *catalogue.of_pool(catalogue.DEFAULT_POOL))
RECORDS: tuple[type[msgspec.Struct], ...] = tuple(dict.fromkeys(record for topic in TOPICS for record in topic.records))
INT64 = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
"""Values that JSON keeps everywhere: integers stay exact as doubles."""
assert stages.topic(Stage.RUN, catalogue.DEFAULT_POOL) in TOPICS


def tag(record: type[msgspec.Struct]) -> str:
    return str(record.__struct_config__.tag)


def full(record: type[msgspec.Struct]) -> msgspec.Struct:
    """A record with every field set to something that isn't its default; the same for ever, unless the type changes."""
    made: msgspec.Struct = _full(inspect.type_info(record))
    return made


def any_of(record: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Any record of a type."""
    return _any(inspect.type_info(record))


def _one(field: inspect.Type) -> inspect.Type:
    """What a field holds when it isn't None."""
    if isinstance(field, inspect.UnionType):
        return next(part for part in field.types if not isinstance(part, inspect.NoneType))
    return field


def _full(of: inspect.Type) -> Any:
    match _one(of):
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: _full_field(field) for field in fields})
        case inspect.ListType(item_type=item):
            return [_full(item)]
        case inspect.DictType(key_type=key, value_type=value):
            return {_full(key): _full(value)}
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.StrType():
            return "naïve"
        case inspect.BytesType():
            return b"\x00\xff{}"
        case inspect.IntType():
            return 2**40 + 1
        case inspect.FloatType():
            return 0.1
        case inspect.BoolType():
            return True
        case other:
            raise NotImplementedError(other)


def _full_field(field: inspect.Field) -> Any:
    made = _full(field.type)
    assert made != field.default, f"{field.name}: the specimen is the default"
    return made


def _any(of: inspect.Type) -> st.SearchStrategy[Any]:
    match of:
        case inspect.UnionType(types=types):
            return st.one_of(*map(_any, types))
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(partial(_made, cls), **{field.name: _any(field.type) for field in fields})
        case inspect.ListType(item_type=item):
            return st.lists(_any(item), max_size=3)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_any(key), _any(value), max_size=3)
        case inspect.EnumType(cls=cls):
            members: list[Enum] = list(cls)
            return st.sampled_from(members)
        case inspect.StrType():
            return st.text(max_size=20)
        case inspect.BytesType():
            return st.binary(max_size=40)
        case inspect.IntType():
            return INT64
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case other:
            raise NotImplementedError(other)


def _made(cls: type[msgspec.Struct], **fields: Any) -> msgspec.Struct:
    return cls(**fields)
