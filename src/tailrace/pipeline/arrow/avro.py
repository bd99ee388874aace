"""Avro values as columns: the types of a schema in Spark, and decoding a batch of values.

Spark's Python workers decode one column of bytes at a time. Values are single records, either bare or behind the five
bytes of Confluent's wire format (a zero and the number of a schema in a registry); the given schema is used, and no
registry is asked. A value that does not match it to its last byte is undecodable, never half a row.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql import Column
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.functions import arrow_udf

from tailrace.errors import ConfigError

#: The only column of a schema that is not a record.
VALUE = "value"
#: A registry numbers schemas from 1, so the second byte is also zero until there are 16 million.
_WIRE_FORMAT = b"\0\0"
_WIRE_HEADER_SIZE = 5
_UNDECODABLE = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, struct.error, MemoryError)

Convert: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Type:
    """One Avro type in Spark and in Arrow, and a conversion for the value that fastavro decoded."""

    spark: spark_types.DataType
    arrow: pa.DataType
    convert: Convert | None = None


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Everything that decoding needs, created once in each worker."""

    parsed: Any
    row: _Type
    wrapped: bool


_PRIMITIVES: Mapping[str, _Type] = {
    "null": _Type(spark_types.StringType(), pa.string()),
    "boolean": _Type(spark_types.BooleanType(), pa.bool_()),
    "int": _Type(spark_types.IntegerType(), pa.int32()),
    "long": _Type(spark_types.LongType(), pa.int64()),
    "float": _Type(spark_types.FloatType(), pa.float32()),
    "double": _Type(spark_types.DoubleType(), pa.float64()),
    "bytes": _Type(spark_types.BinaryType(), pa.binary()),
    "string": _Type(spark_types.StringType(), pa.string()),
    "fixed": _Type(spark_types.BinaryType(), pa.binary()),
    "enum": _Type(spark_types.StringType(), pa.string()),
}
_MOMENT = _Type(spark_types.TimestampType(), pa.timestamp("us", tz="UTC"))
_LOCAL_MOMENT = _Type(spark_types.TimestampNTZType(), pa.timestamp("us"))
_LOGICAL: Mapping[tuple[str, str], _Type] = {
    ("int", "date"): _Type(spark_types.DateType(), pa.date32()),
    ("long", "timestamp-millis"): _MOMENT,
    ("long", "timestamp-micros"): _MOMENT,
    ("long", "local-timestamp-millis"): _LOCAL_MOMENT,
    ("long", "local-timestamp-micros"): _LOCAL_MOMENT,
}
#: Unions of numbers, and the type that can hold all of them.
_WIDER = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


def check_schema(text: str) -> None:
    """Raise `ConfigError` unless the text is an Avro schema with a counterpart in Spark."""
    _decoder(text)


def row_type(text: str) -> spark_types.StructType:
    """Return the columns of a schema, in Spark's types."""
    spark = _decoder(text).row.spark
    assert isinstance(spark, spark_types.StructType)
    return spark


def result_type(text: str) -> spark_types.StructType:
    """Return the type of `decode_batch`'s result: the row, null if undecodable, and whether it is undecodable."""
    return spark_types.StructType(
        [
            spark_types.StructField("row", row_type(text)),
            spark_types.StructField("undecodable", spark_types.BooleanType()),
        ]
    )


def decode_column(text: str) -> Callable[[Column], Column]:
    """Return a function on columns that decodes values of this schema in Spark's workers."""
    result = result_type(text)

    def decode(values: pa.Array) -> pa.Array:
        return decode_batch(text, values)

    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    decoding: Callable[[Column], Column] = arrow_udf(decode, result)  # type: ignore[call-overload]
    return decoding


def decode_batch(text: str, values: pa.Array) -> pa.Array:
    """Decode a column of values; a null stays null and is not undecodable."""
    decoder = _decoder(text)
    rows: list[Any] = []
    failed: list[bool] = []
    for value in values.to_pylist():
        row = None if value is None else _decode(decoder, value)
        rows.append(row)
        failed.append(row is None and value is not None)
    try:
        column = pa.array(rows, type=decoder.row.arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # A value is out of its type's range, such as an int beyond 32 bits: find it.
        for number, row in enumerate(rows):
            try:
                pa.array([row], type=decoder.row.arrow)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                rows[number], failed[number] = None, True
        column = pa.array(rows, type=decoder.row.arrow)
    return pa.StructArray.from_arrays([column, pa.array(failed, type=pa.bool_())], names=["row", "undecodable"])


def _decode(decoder: _Decoder, value: bytes) -> Any | None:
    if value.startswith(_WIRE_FORMAT):
        row = _decode_from(decoder, value, _WIRE_HEADER_SIZE)
        if row is not None:
            return row
    return _decode_from(decoder, value, 0)


def _decode_from(decoder: _Decoder, value: bytes, start: int) -> Any | None:
    stream = io.BytesIO(value)
    stream.seek(start)
    try:
        row = schemaless_reader(stream, decoder.parsed, None)
        if stream.tell() != len(value):
            return None
        if decoder.wrapped:
            row = {VALUE: row}
        return row if decoder.row.convert is None else decoder.row.convert(row)
    except _UNDECODABLE:
        return None


@lru_cache(maxsize=64)
def _decoder(text: str) -> _Decoder:
    try:
        schema = json.loads(text)
        parsed = _without_other_logic(parse_schema(schema))
    except json.JSONDecodeError as error:
        raise ConfigError(f"the Avro schema is not JSON: {error}") from None
    except (SchemaParseException, UnknownType, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"the Avro schema is invalid: {type(error).__name__}: {error}") from None
    row = _type_of(parsed, {}, ())
    if isinstance(row.spark, spark_types.StructType):
        return _Decoder(parsed, row, wrapped=False)
    return _Decoder(parsed, _struct([(VALUE, row)]), wrapped=True)


def _without_other_logic(schema: Any) -> Any:
    """Remove logical types without a counterpart here, so that fastavro returns the plain value."""
    if isinstance(schema, list):
        return [_without_other_logic(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    logical = schema.get("logicalType")
    kept = logical == "decimal" or (schema.get("type"), logical) in _LOGICAL
    changed = {name: part for name, part in schema.items() if kept or name != "logicalType"}
    for name in ("items", "values"):
        if name in changed:
            changed[name] = _without_other_logic(changed[name])
    if "fields" in changed:
        changed["fields"] = [{**one, "type": _without_other_logic(one["type"])} for one in changed["fields"]]
    if "__named_schemas" in changed:
        changed["__named_schemas"] = {
            name: _without_other_logic(one) if one is not schema else changed
            for name, one in changed["__named_schemas"].items()
        }
    return changed


def _type_of(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> _Type:
    if isinstance(schema, list):
        return _union(schema, named, within)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in within:
            raise ConfigError(f"the Avro type {schema} contains itself; Spark has no such columns")
        return _type_of(named[schema], named, within)
    kind = schema["type"]
    if not isinstance(kind, str) or kind not in (*_PRIMITIVES, "record", "error", "array", "map"):
        return _type_of(kind, named, within)
    if kind in ("record", "error"):
        named[schema["name"]] = schema
        inner = (*within, schema["name"])
        return _struct([(field["name"], _type_of(field["type"], named, inner)) for field in schema["fields"]])
    if kind in ("fixed", "enum"):
        named[schema["name"]] = schema
    if kind == "array":
        return _array(_type_of(schema["items"], named, within))
    if kind == "map":
        return _map(_type_of(schema["values"], named, within))
    if schema.get("logicalType") == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > 38:
            raise ConfigError(f"the Avro schema has a decimal of {precision} digits; Spark allows at most 38")
        return _Type(spark_types.DecimalType(precision, scale), pa.decimal128(precision, scale))
    return _LOGICAL.get((kind, schema.get("logicalType", "")), _PRIMITIVES[kind])


def _union(branches: list[Any], named: dict[str, Any], within: tuple[str, ...]) -> _Type:
    kinds = [branch for branch in branches if branch != "null"]
    types = [_type_of(branch, named, within) for branch in kinds]
    if len(types) == 1:
        return types[0]
    if not types:
        return _PRIMITIVES["null"]
    if all(isinstance(kind, str) for kind in kinds) and frozenset(kinds) in _WIDER:
        return _PRIMITIVES[_WIDER[frozenset(kinds)]]
    # Spark has no type for "either a string or a record": JSON text keeps all of it.
    return _Type(spark_types.StringType(), pa.string(), _as_json)


def _struct(fields: list[tuple[str, _Type]]) -> _Type:
    spark = spark_types.StructType([spark_types.StructField(name, one.spark) for name, one in fields])
    arrow = pa.struct([pa.field(name, one.arrow) for name, one in fields])
    converts = [(name, one.convert) for name, one in fields if one.convert is not None]
    if not converts:
        return _Type(spark, arrow)

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        for name, inner in converts:
            if row[name] is not None:
                row[name] = inner(row[name])
        return row

    return _Type(spark, arrow, convert)


def _array(item: _Type) -> _Type:
    inner = item.convert
    convert: Convert | None = None
    if inner is not None:
        convert = lambda items: [None if one is None else inner(one) for one in items]  # noqa: E731
    return _Type(spark_types.ArrayType(item.spark), pa.list_(pa.field("element", item.arrow)), convert)


def _map(value: _Type) -> _Type:
    inner = value.convert

    def convert(entries: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(key, one if inner is None or one is None else inner(one)) for key, one in entries.items()]

    spark = spark_types.MapType(spark_types.StringType(), value.spark)
    return _Type(spark, pa.map_(pa.string(), value.arrow), convert)


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
