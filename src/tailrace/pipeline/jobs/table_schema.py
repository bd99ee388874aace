"""The columns of a job's table, stored beside its files: which changes of a job are compatible, and which are refused.

Columns may be added, may be missing, and may have narrower types than in the table: these are written in the table's
types. All columns may be null, because files from before a column was added have none. So one schema can read all files
of a table. Any other change is refused before anything is written: Spark takes a table's columns from one of its files,
and fails at the first file with other types.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from tailrace.errors import ConfigError
from tailrace.pipeline.jobs.checkpoints import absolute, read_text, write_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Readers of Parquet ignore files with this prefix.
SCHEMA_FILE = "_tailrace_schema.json"
_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}


class TableSchemaError(ConfigError):
    """A job's rows do not fit the existing table."""


def fitted(spark: SparkSession, result: DataFrame, path: str, partition_by: tuple[str, ...], job: str) -> DataFrame:
    """Convert a job's rows to the types of its table, and update the table's stored columns."""
    place = f"{absolute(path).rstrip('/')}/{SCHEMA_FILE}"
    kept = read_text(spark, place)
    table, partitions = _parsed(kept, place) if kept is not None else _found(spark, absolute(path))
    if table is None:
        merged, rows = _fit(StructType([]), result, path, job)
    else:
        if partitions is not None and partitions != partition_by:
            raise TableSchemaError(
                f"job '{job}' partitions table '{path}' by {_names(partition_by)}, but the table is partitioned "
                f"by {_names(partitions)}; write to another table"
            )
        merged, rows = _fit(table, result, path, job)
    text = json.dumps({"columns": merged.jsonValue(), "partition_by": list(partition_by)})
    if text != kept:
        write_text(spark, place, text)
    return rows


def _fit(table: StructType, result: DataFrame, path: str, job: str) -> tuple[StructType, DataFrame]:
    given = {field.name.lower(): field for field in result.schema.fields}
    fields: list[StructField] = []
    columns: list[Any] = []
    for old in table.fields:
        new = given.pop(old.name.lower(), None)
        if new is None:
            fields.append(old)
            columns.append(F.lit(None).cast(old.dataType).alias(old.name))
            continue
        kind = _fits(old.dataType, new.dataType)
        if kind is None:
            raise TableSchemaError(
                f"job '{job}' has column '{new.name}' as {new.dataType.simpleString()}, which does not fit into "
                f"{old.dataType.simpleString()} of table '{path}'; cast it, give it another name, or write to "
                "another table"
            )
        fields.append(StructField(old.name, kind))
        # Cast to the table's type, but keep the order of a struct's fields: a cast goes by position.
        goal = kind if isinstance(kind, AtomicType) else new.dataType
        columns.append(_nullable(new, goal).alias(old.name))
    for new in given.values():
        fields.append(StructField(new.name, _all_nullable(new.dataType)))
        columns.append(_nullable(new, new.dataType).alias(new.name))
    return StructType(fields), result.select(*columns)


def _nullable(field: StructField, kind: DataType) -> Column:
    """Return a column in a type, nullable for Spark even if it is never null."""
    column = F.col(_quoted(field.name)).cast(_all_nullable(kind))
    if field.nullable:
        return column
    # Always true, but Spark's optimizer does not know that, and so cannot infer that the column is never null.
    return F.when(F.spark_partition_id() >= 0, column)


def _all_nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _all_nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_all_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_all_nullable(kind.keyType), _all_nullable(kind.valueType))
    return kind


def _fits(table: DataType, given: DataType) -> DataType | None:
    """Return the type that a column has from now on, None if the new one does not fit."""
    if _plain(table) == _plain(given):
        return table
    if isinstance(given, NullType) or type(table) in _WIDER.get(type(given), ()):
        return table
    if isinstance(table, DecimalType):
        whole = table.precision - table.scale
        if isinstance(given, DecimalType):
            fits = given.scale <= table.scale and given.precision - given.scale <= whole
        else:
            fits = _DIGITS.get(type(given), 1 << 30) <= whole
        return table if fits else None
    return _extended(table, given)


def _extended(table: DataType, given: DataType) -> DataType | None:
    """Return a nested type with the table's fields and new ones; the table's fields must be there and the same."""
    if isinstance(table, StructType) and isinstance(given, StructType):
        kinds = {field.name: field.dataType for field in given.fields}
        fields = []
        for old in table.fields:
            inner = _same_or_extended(old.dataType, kinds.get(old.name))
            if inner is None:
                return None
            fields.append(StructField(old.name, inner))
        known = {field.name for field in table.fields}
        return StructType(fields + [field for field in given.fields if field.name not in known])
    if isinstance(table, ArrayType) and isinstance(given, ArrayType):
        inner = _same_or_extended(table.elementType, given.elementType)
        return None if inner is None else ArrayType(inner)
    if isinstance(table, MapType) and isinstance(given, MapType) and _plain(table.keyType) == _plain(given.keyType):
        inner = _same_or_extended(table.valueType, given.valueType)
        return None if inner is None else MapType(table.keyType, inner)
    return None


def _same_or_extended(table: DataType, given: DataType | None) -> DataType | None:
    if given is None:
        return None
    return table if _plain(table) == _plain(given) else _extended(table, given)


def _plain(kind: DataType) -> str:
    """Return a type without nullability, and with its fields sorted."""
    if isinstance(kind, StructType):
        return "struct<" + ",".join(sorted(f"{field.name}:{_plain(field.dataType)}" for field in kind.fields)) + ">"
    if isinstance(kind, ArrayType):
        return f"array<{_plain(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_plain(kind.keyType)},{_plain(kind.valueType)}>"
    return kind.simpleString()


# --- the existing table


def _parsed(text: str, place: str) -> tuple[StructType, tuple[str, ...]]:
    try:
        content = json.loads(text)
        return StructType.fromJson(content["columns"]), tuple(content["partition_by"])
    except (ValueError, KeyError, TypeError) as error:
        raise TableSchemaError(f"{place} does not contain the columns of a table: {error}") from None


def _found(spark: SparkSession, path: str) -> tuple[StructType | None, tuple[str, ...] | None]:
    """Return the columns of a table from before they were stored; None if there is none yet.

    The types of partition columns are only Spark's guess from names of directories.
    """
    from pyspark.errors import AnalysisException, PySparkException

    jvm: Any = spark.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(place):
        return None, None
    try:
        table = spark.read.option("mergeSchema", "true").parquet(path)
    except AnalysisException:  # nothing was ever written to it
        return None, None
    except PySparkException as error:
        raise TableSchemaError(
            f"the files of table '{path}' already have columns with different types: "
            f"{str(error).splitlines()[0]}; write to another table"
        ) from error
    names = next(iter(table.inputFiles()), "").removeprefix("file://").partition(path)[2].split("/")[:-1]
    partitions = tuple(part.partition("=")[0] for part in names if "=" in part)
    return StructType([field for field in table.schema.fields if field.name not in partitions]), partitions


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(columns) or "nothing"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
