"""The columns of a topic, the same as those of Spark's Kafka connector, in Spark's types and in Arrow's.

Owns names, types and their order. The two kinds of types must agree: Spark compares them before it takes the first
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.pipeline.failures import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = "headers"

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
#: Every column, in order.
COLUMNS = tuple(_TYPES)
#: The default columns.
DEFAULT_COLUMNS = COLUMNS[:-1]


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the schema of some columns, for Spark."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


@lru_cache(maxsize=16)
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of some columns, for Arrow."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        HEADERS: pa.list_(pa.field("element", header)),
    }
    return pa.schema([(name, types[name]) for name in columns])


def chosen_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a schema demands; OptionError if it has one that topics do not have."""
    for field in schema.fields:
        known = _TYPES.get(field.name)
        if known is None:
            raise OptionError(f"a topic has no column '{field.name}'; it has {', '.join(COLUMNS)}")
        if field.dataType.simpleString() != known.simpleString():
            raise OptionError(
                f"column '{field.name}' of a topic is {known.simpleString()}, not {field.dataType.simpleString()}"
            )
    return tuple(field.name for field in schema.fields)
