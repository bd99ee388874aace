"""The columns of a DataFrame that become records, checked before anything is written.

Names and types are those of Spark's Kafka connector: `value` is required; `key`, `headers`, `topic` and `partition` are
optional; other columns are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from tailrace.pipeline.failures import SourceError

_TEXT_OR_BYTES = "string or binary"
_HEADERS = "array<struct<key:string,value:binary>>"


class ColumnError(SourceError):
    """A DataFrame does not have the columns that a topic needs."""


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The positions of the written columns, None for missing ones."""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    #: For writes that keep the times of records; otherwise a DataFrame's column with that name is ignored, as in
    #: Kafka's connector.
    timestamp: int | None = None


def write_columns(schema: StructType, topic: str | None) -> WriteColumns:
    """Find the columns of a DataFrame to write; ColumnError says which one is missing or has the wrong type."""
    places = {name: place for place, name in enumerate(schema.fieldNames())}
    if "value" not in places:
        found = ", ".join(f"'{name}'" for name in places) or "none"
        raise ColumnError(
            f"required column 'value' not found among {found}; make one, for example with to_json(struct(*)) AS value"
        )
    if topic is None and "topic" not in places:
        raise ColumnError("no topic to write to: set the option 'topic', or give each row one in a column 'topic'")
    _check(schema, "value", _TEXT_OR_BYTES, (StringType, BinaryType))
    _check(schema, "key", _TEXT_OR_BYTES, (StringType, BinaryType))
    _check(schema, "partition", "int", (IntegerType,))
    if topic is None:
        _check(schema, "topic", "string", (StringType,))
    if "headers" in places and not _are_headers(schema["headers"].dataType):
        raise ColumnError(_wrong_type("headers", schema["headers"].dataType, _HEADERS))
    return WriteColumns(
        value=places["value"],
        key=places.get("key"),
        headers=places.get("headers"),
        topic=places.get("topic") if topic is None else None,
        partition=places.get("partition"),
    )


def _check(schema: StructType, name: str, wanted: str, kinds: tuple[type[DataType], ...]) -> None:
    if name in schema.fieldNames() and not isinstance(schema[name].dataType, kinds):
        raise ColumnError(_wrong_type(name, schema[name].dataType, wanted))


def _are_headers(kind: DataType) -> bool:
    return (
        isinstance(kind, ArrayType)
        and isinstance(kind.elementType, StructType)
        and [field.name for field in kind.elementType.fields] == ["key", "value"]
        and isinstance(kind.elementType["key"].dataType, StringType)
        and isinstance(kind.elementType["value"].dataType, BinaryType)
    )


def _wrong_type(name: str, kind: DataType, wanted: str) -> str:
    return f"column '{name}' must be {wanted}, but is {kind.simpleString()}; cast it first"
