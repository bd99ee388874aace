"""The rows of a query, out of Spark: as Arrow batches in the order of the query, or as Parquet and CSV files.

Spark's workers pack rows for the driver as Arrow, and they are unpacked here, a partition at a time, so that a result
may exceed memory. A file appears complete under its name, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from tailrace.errors import ConfigError
from tailrace.pipeline.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

OutputFormat: TypeAlias = Literal["parquet", "csv"]


def row_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order; columns are numbered, as a query may give several the same name."""
    numbered = _transferable(frame)
    if numbered.isLocal():
        yield from numbered.toArrow().to_batches()
        return
    packed = numbered.mapInArrow(_pack, "batch binary")
    for row in packed.toLocalIterator(prefetchPartitions=True):
        with pa.ipc.open_stream(row[0]) as stream:
            yield from stream


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column in Python's types; a time that Python cannot represent, as text.

    Brokers do not check the times of produced records, and Python's range is from year 1 to 9999.
    """
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_python_value(column.type, value) for value in column]


def _python_value(kind: pa.DataType, value: Any) -> Any:
    if not value.is_valid:
        return None
    if pa.types.is_map(kind):
        pairs = value.values
        return list(zip(python_values(pairs.field(0)), python_values(pairs.field(1)), strict=True))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return python_values(value.values)
    if pa.types.is_struct(kind):
        return {one.name: _python_value(one.type, value[index]) for index, one in enumerate(kind)}
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return _far_moment(kind, value)


def _far_moment(kind: pa.DataType, value: Any) -> str:
    """Return ISO 8601 with a sign before a year of other than four digits, for years beyond Python's range."""
    import numpy as np

    if pa.types.is_date(kind):
        text, zone = str(np.datetime64(value.cast(pa.int32()).as_py(), "D")), ""
    else:
        text = str(np.datetime64(value.value, kind.unit))
        text, zone = text.removesuffix("000") if kind.unit == "us" else text, "Z" if kind.tz else ""
    sign = "-" if text.startswith("-") else "+"
    year, dash, rest = text.lstrip("-").partition("-")
    if sign == "+" and len(year) <= 4:
        sign = ""
    return f"{sign}{year.zfill(4)}{dash}{rest}{zone}"


def _pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], type=pa.binary())], names=["batch"])


def _transferable(frame: DataFrame) -> DataFrame:
    """Number the columns, and convert those without an Arrow type to text."""
    from pyspark.sql import functions as F

    numbered = frame.toDF(*(str(number) for number in range(len(frame.columns))))
    columns: list[Column] = []
    for one in numbered.schema:
        kind = one.dataType.typeName()
        column = F.col(one.name)
        if "interval" in kind:
            column = column.cast("string").alias(one.name)
        elif kind == "variant":
            column = F.to_json(column).alias(one.name)
        columns.append(column)
    return numbered.select(*columns)


# --- files


def output_format_of(path: str, given: OutputFormat | None) -> OutputFormat:
    """Return the output format: the given one, else by the name's ending, else Parquet."""
    if given is not None:
        return given
    ending = path.rstrip("/").rpartition(".")[2].lower()
    return "csv" if ending == "csv" else "parquet"


def is_single_file(path: str) -> bool:
    """True if a path names one file on this machine, by its ending."""
    return "://" not in path and path.lower().endswith((".parquet", ".csv"))


def check_output(path: str, *, overwrite: bool) -> None:
    """Refuse an output that already exists, before Spark is started for it."""
    if "://" in path:
        return  # Spark itself checks these.
    place = Path(path)
    if place.exists() and not overwrite:
        raise ConfigError(f"{path} already exists; choose another name, or replace it with --overwrite")
    if place.is_dir() and is_single_file(path):
        raise ConfigError(f"{path} is a directory, but the output is a file; remove the directory first")
    if place.is_file() and not is_single_file(path):
        raise ConfigError(f"{path} is a file, but the output is a directory; remove the file first")
    if not place.absolute().parent.is_dir() and is_single_file(path):
        raise ConfigError(f"the directory {place.absolute().parent} for {path} does not exist")


def write_output(
    frame: DataFrame, path: str, format: OutputFormat, *, overwrite: bool, seen: Callable[[int], None]
) -> int:
    """Write all rows and return their number; `seen` gets the number so far."""
    named = _distinct_names(frame)
    ready = _flat(named) if format == "csv" else named
    if is_single_file(path):
        return _write_file(ready, Path(path), format, seen)
    return _write_directory(ready, path, format, overwrite=overwrite)


def _write_directory(frame: DataFrame, path: str, format: OutputFormat, *, overwrite: bool) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation()
    counted = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    writer = counted.write.mode("overwrite" if overwrite else "errorifexists")
    target = path if "://" in path else Path(path).absolute().as_uri()
    if format == "csv":
        writer.csv(target, header=True)
    else:
        writer.parquet(target, compression="zstd")
    return int(observation.get["rows"])


def _write_file(frame: DataFrame, path: Path, format: OutputFormat, seen: Callable[[int], None]) -> int:
    kinds = _transferable(frame).limit(0).toArrow().schema.types
    schema = pa.schema([pa.field(name, kind) for name, kind in zip(frame.columns, kinds, strict=True)])
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    rows = 0
    try:
        with _file_writer(part, schema, format) as writer:
            for batch in row_batches(frame):
                writer.write_batch(pa.record_batch(batch.columns, schema=schema))
                rows += batch.num_rows
                seen(rows)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return rows


def _file_writer(path: Path, schema: pa.Schema, format: OutputFormat) -> Any:
    if format == "csv":
        from pyarrow import csv

        return csv.CSVWriter(path, schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(path, schema, compression="zstd")


def _distinct_names(frame: DataFrame) -> DataFrame:
    lower = [name.lower() for name in frame.columns]
    for name in frame.columns:
        if lower.count(name.lower()) > 1:
            raise PipelineError(f"the result has two columns '{name}'; rename one with AS")
    return frame


def _flat(frame: DataFrame) -> DataFrame:
    """Convert columns for CSV: bytes to text, or to base64 if they are not text, and nested values to JSON."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    def flat(name: str, kind: DataType) -> Column:
        column = F.col("`" + name.replace("`", "``") + "`")
        if isinstance(kind, BinaryType):
            text = column.cast("string")
            return F.when(F.is_valid_utf8(text), text).otherwise(F.base64(column)).alias(name)
        if isinstance(kind, ArrayType | MapType | StructType):
            return F.to_json(column).alias(name)
        return column

    return frame.select(*(flat(one.name, one.dataType) for one in frame.schema))
