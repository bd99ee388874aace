"""Hypothesis strategies derived from the message descriptions: any value that a version can carry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tailrace.wire.codec import Field, Kind, Message, Struct
from tests.support.messages import REQUESTS, RESPONSES

INTEGERS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}

# Beyond 127 bytes or elements a compact length takes two bytes, beyond 16383 three.
TEXTS = st.one_of(
    st.text(max_size=6), st.integers(120, 130).map(lambda n: "x" * n), st.just("ü" * 64), st.just("y" * 20_000)
)
BYTES = st.one_of(st.binary(max_size=20), st.sampled_from([b"r" * 126, b"r" * 127, b"r" * 16_383, b"r" * 70_000]))

SAMPLES: dict[Kind, Any] = {
    **dict.fromkeys(INTEGERS, 7),
    Kind.BOOL: True,
    Kind.UUID: UUID(int=7),
    Kind.STRING: "text",
    Kind.BYTES: b"bytes",
    Kind.RECORDS: b"records",
}


def all_versions() -> Iterator[tuple[type[Message], int]]:
    """Every message in every version that it has."""
    for table in (REQUESTS, RESPONSES):
        for message in table.values():
            for version in range(message.MIN_VERSION, message.MAX_VERSION + 1):
                yield message, version


def version_id(value: object) -> str:
    """How a message class or a version reads in a test's name."""
    return value.__name__ if isinstance(value, type) else f"v{value}"


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Any value of a kind that is neither an array nor a struct."""
    if kind in INTEGERS:
        limit = 1 << (INTEGERS[kind] - 1)
        return st.integers(-limit, limit - 1)
    return {
        Kind.BOOL: st.booleans(),
        Kind.UUID: st.uuids(),
        Kind.STRING: TEXTS,
        Kind.BYTES: BYTES,
        Kind.RECORDS: BYTES,
    }[kind]


def sample(struct: type[Struct], version: int) -> Any:
    """A struct with something other than the default in every field of a version."""
    value = struct()
    for name, field in struct.FIELDS.items():
        if not field.in_version(version):
            continue
        if field.kind is Kind.STRUCT or (field.kind is Kind.ARRAY and field.struct is not None):
            assert field.struct is not None
            inner = sample(field.struct, version)
            setattr(value, name, [inner, inner] if field.kind is Kind.ARRAY else inner)
        elif field.kind is Kind.ARRAY:
            assert field.element is not None
            setattr(value, name, [SAMPLES[field.element]] * 2)
        else:
            setattr(value, name, SAMPLES[field.kind])
    return value


def structs(
    struct: type[Struct], version: int, overrides: dict[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[Any]:
    """Any struct that a version can carry; `overrides` narrow fields by name."""
    overrides = overrides or {}
    fields = {
        name: overrides[name] if name in overrides else _field_values(field, version, overrides)
        for name, field in struct.FIELDS.items()
        if field.in_version(version)
    }
    return st.builds(struct, **fields)


def _field_values(field: Field, version: int, overrides: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    strategy: st.SearchStrategy[Any]
    if field.kind is Kind.STRUCT:
        assert field.struct is not None
        strategy = structs(field.struct, version, overrides)
        if field.default is None and field.tag is not None and not field.is_nullable(version):
            # A tagged struct whose fields all have their defaults is not sent, so it comes back as None.
            default = field.struct()
            strategy = st.none() | strategy.map(lambda value: None if value == default else value)
    elif field.kind is Kind.ARRAY and field.struct is not None:
        strategy = st.lists(structs(field.struct, version, overrides), max_size=2)
    elif field.kind is Kind.ARRAY:
        assert field.element is not None
        element = values(field.element)
        strategy = st.lists(element, max_size=3) | element.map(lambda value: [value] * 130)
        if field.element is Kind.STRING:
            strategy = st.lists(st.text(max_size=6), max_size=3)
    else:
        strategy = values(field.kind)
    if field.is_nullable(version):
        strategy = st.none() | strategy
    if field.tag is not None and not field.default_is_built:
        strategy = st.just(field.default) | strategy
    return strategy
