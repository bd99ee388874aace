"""Descriptions of messages: typed fields, each with the versions that have it, in classes with slots.

Owns the descriptions of fields, and the construction, comparison and printing of structs. A field outside its versions
keeps its default. This module knows no bytes: `decoding` and `encoding` compile the descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, TypeVar, cast, dataclass_transform, overload
from uuid import UUID

from tailrace.model import ZERO_UUID, Lineage, TopicId
from tailrace.runtime.disk import Buffer
from tailrace.runtime.transport import Part

#: The `until` of a field that no later version has removed.
FOREVER = 0x7FFF
#: The `FLEXIBLE_FROM` of a message without flexible versions.
NEVER = FOREVER + 1


class Kind(Enum):
    """The types of fields, with Kafka's names."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    ARRAY = "array"
    STRUCT = "struct"


#: The `struct` format and size of each kind with a fixed size.
FIXED_FORMATS = {
    Kind.INT8: ("b", 1),
    Kind.INT16: ("h", 2),
    Kind.INT32: ("i", 4),
    Kind.INT64: ("q", 8),
    Kind.BOOL: ("?", 1),
    Kind.UUID: ("16s", 16),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct: its type, the versions that have it, and its default in other versions.

    A default of None in a tagged struct that is never null means "all defaults, not sent", so that hot arrays need not
    build structs that are never sent. Otherwise arrays and structs default to a new empty one, or null.
    """

    kind: Kind
    since: int = 0
    until: int = FOREVER
    nullable_from: int | None = None
    tag: int | None = None
    default: object = None
    #: The element type of an array, unless its elements are structs.
    element: Kind | None = None
    #: The class of a struct, or of an array's elements.
    struct: type[Struct] | None = None

    def in_version(self, version: int) -> bool:
        """Whether a version has this field."""
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        """Whether a version encodes null for this field."""
        return self.nullable_from is not None and version >= self.nullable_from

    @property
    def default_is_built(self) -> bool:
        """Whether the default is mutable, so that each struct needs its own."""
        return self.default is list or self.default is self.struct is not None

    def new_default(self) -> object:
        """The default value, newly created if it is mutable."""
        return cast(type, self.default)() if self.default_is_built else self.default


class _Unset:
    """Marks a missing constructor argument."""

    def __repr__(self) -> str:
        return "…"


_UNSET = _Unset()


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Turns the fields of a class body into slots and a keyword constructor."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> StructType:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key in fields:
            del namespace[key]
        namespace["FIELDS"] = fields
        namespace["__slots__"] = tuple(fields)
        if fields:
            namespace["__init__"] = _compile_constructor(name, fields)
        return super().__new__(mcs, name, bases, namespace)


def _compile_constructor(name: str, fields: dict[str, Field]) -> object:
    arguments: list[str] = []
    body: list[str] = []
    constants: dict[str, object] = {"unset": _UNSET}
    for index, (key, field) in enumerate(fields.items()):
        constants[f"d{index}"] = field.default
        if field.default_is_built:
            arguments.append(f"{key}=unset")
            body.append(f"    self.{key} = d{index}() if {key} is unset else {key}")
        else:
            arguments.append(f"{key}=d{index}")
            body.append(f"    self.{key} = {key}")
    source = f"def __init__(self, *, {', '.join(arguments)}):\n" + "\n".join(body)
    exec(compile(source, f"<{name}.__init__>", "exec"), constants)
    return constants["__init__"]


class Struct(metaclass=StructType):
    """A mutable record of fields, compared by value; part of a message."""

    FIELDS: ClassVar[dict[str, Field]]

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._non_defaults())
        return f"{self.__class__.__name__}({shown})"

    def _non_defaults(self) -> Iterator[tuple[str, object]]:
        for name, field in self.FIELDS.items():
            value = getattr(self, name)
            if value != field.new_default():
                yield name, value


S = TypeVar("S", bound=Struct)


# The functions below return a `Field` but are typed as the field's value: to a type checker each is the default of an
# attribute, so a wrong annotation is an error and every constructor argument is optional.


def int8(*, since: int = 0, until: int = FOREVER, default: int = 0, tag: int | None = None) -> int:
    """An 8-bit signed integer."""
    return cast(int, Field(Kind.INT8, since, until, None, tag, default))


def int16(*, since: int = 0, until: int = FOREVER, default: int = 0, tag: int | None = None) -> int:
    """A 16-bit signed integer."""
    return cast(int, Field(Kind.INT16, since, until, None, tag, default))


def int32(*, since: int = 0, until: int = FOREVER, default: int = 0, tag: int | None = None) -> int:
    """A 32-bit signed integer."""
    return cast(int, Field(Kind.INT32, since, until, None, tag, default))


def int64(*, since: int = 0, until: int = FOREVER, default: int = 0, tag: int | None = None) -> int:
    """A 64-bit signed integer."""
    return cast(int, Field(Kind.INT64, since, until, None, tag, default))


def boolean(*, since: int = 0, until: int = FOREVER, default: bool = False, tag: int | None = None) -> bool:
    """A byte, which is zero or not."""
    return cast(bool, Field(Kind.BOOL, since, until, None, tag, default))


def uuid(*, since: int = 0, until: int = FOREVER, tag: int | None = None) -> UUID:
    """Sixteen bytes that name a topic, a directory or a process."""
    return cast(UUID, Field(Kind.UUID, since, until, None, tag, ZERO_UUID))


def topic_uuid(*, since: int = 0, until: int = FOREVER, tag: int | None = None) -> TopicId:
    """The id by which clients and brokers refer to a topic."""
    return cast(TopicId, uuid(since=since, until=until, tag=tag))


def lineage_uuid(*, since: int = 0, until: int = FOREVER, tag: int | None = None) -> Lineage:
    """The permanent identity of a topic, for whatever stores something about it."""
    return cast(Lineage, uuid(since=since, until=until, tag=tag))


@overload
def string(
    *, since: int = ..., until: int = ..., default: str = ..., tag: int | None = ..., nullable_from: None = ...
) -> str: ...
@overload
def string(
    *, since: int = ..., until: int = ..., default: str | None = ..., tag: int | None = ..., nullable_from: int
) -> str | None: ...
def string(
    *,
    since: int = 0,
    until: int = FOREVER,
    default: str | None = "",
    tag: int | None = None,
    nullable_from: int | None = None,
) -> str | None:
    """UTF-8 text."""
    return cast(str, Field(Kind.STRING, since, until, nullable_from, tag, default))


@overload
def byte_string(*, since: int = ..., until: int = ..., nullable_from: None = ...) -> Buffer: ...
@overload
def byte_string(
    *, since: int = ..., until: int = ..., nullable_from: int, default: Buffer | None = ...
) -> Buffer | None: ...
def byte_string(
    *,
    since: int = 0,
    until: int = FOREVER,
    nullable_from: int | None = None,
    default: Buffer | None = b"",
) -> Buffer | None:
    """Opaque bytes; decoded as a view of the body."""
    return cast(Buffer, Field(Kind.BYTES, since, until, nullable_from, None, default))


def record_data() -> Buffer | None:
    """Record batches or null; decoded as a view of the body."""
    return cast(Buffer, Field(Kind.RECORDS, nullable_from=0))


def record_parts() -> Part | None:
    """Record batches or null; `encode_parts` also accepts a range of a file."""
    return cast(Part, Field(Kind.RECORDS, nullable_from=0))


@overload
def array(
    element: type[S], *, since: int = ..., until: int = ..., tag: int | None = ..., nullable_from: None = ...
) -> list[S]: ...
@overload
def array(
    element: type[S],
    *,
    since: int = ...,
    until: int = ...,
    tag: int | None = ...,
    nullable_from: int,
    null_by_default: bool = ...,
) -> list[S] | None: ...
@overload
def array(
    element: Literal[Kind.STRING],
    *,
    since: int = ...,
    until: int = ...,
    tag: int | None = ...,
    nullable_from: None = ...,
) -> list[str]: ...
@overload
def array(
    element: Literal[Kind.STRING],
    *,
    since: int = ...,
    until: int = ...,
    tag: int | None = ...,
    nullable_from: int,
    null_by_default: bool = ...,
) -> list[str] | None: ...
@overload
def array(
    element: Literal[Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64],
    *,
    since: int = ...,
    until: int = ...,
    tag: int | None = ...,
    nullable_from: None = ...,
) -> list[int]: ...
@overload
def array(
    element: Literal[Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64],
    *,
    since: int = ...,
    until: int = ...,
    tag: int | None = ...,
    nullable_from: int,
    null_by_default: bool = ...,
) -> list[int] | None: ...
@overload
def array(
    element: Literal[Kind.UUID],
    *,
    since: int = ...,
    until: int = ...,
    tag: int | None = ...,
    nullable_from: None = ...,
) -> list[UUID]: ...
def array(
    element: Any,
    *,
    since: int = 0,
    until: int = FOREVER,
    tag: int | None = None,
    nullable_from: int | None = None,
    null_by_default: bool = False,
) -> Any:
    """A list of structs, strings, integers or UUIDs; by default empty, or null with `null_by_default`."""
    default = None if null_by_default else list
    if isinstance(element, Kind):
        return Field(Kind.ARRAY, since, until, nullable_from, tag, default, element=element)
    return Field(Kind.ARRAY, since, until, nullable_from, tag, default, struct=element)


def struct(element: type[S], *, since: int = 0, until: int = FOREVER, tag: int | None = None) -> S:
    """One nested struct; by default a new one with all defaults."""
    return cast(S, Field(Kind.STRUCT, since, until, None, tag, element, struct=element))


def optional_struct(
    element: type[S],
    *,
    since: int = 0,
    until: int = FOREVER,
    tag: int | None = None,
    nullable_from: int | None = None,
) -> S | None:
    """One nested struct or None, which is null on the wire, or for a never-null tagged struct all defaults (unsent)."""
    if tag is None and nullable_from is None:
        nullable_from = since
    return cast(S, Field(Kind.STRUCT, since, until, nullable_from, tag, None, struct=element))
