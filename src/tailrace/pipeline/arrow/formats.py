"""The meaning of value bytes: JSON, Avro, text or none, and the columns that result.

Owns the columns that a query sees: the value's fields at top level, then the record's metadata under names that begin
with `_`. No value makes a query fail: an undecodable one is in `_corrupt`, and its fields are null. Everything is an
expression on columns, so that filters on partition, offset and timestamp still reach the source, and batches and
streams behave the same. This module must not know topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Format: TypeAlias = Literal["json", "avro", "text", "raw"]
FORMATS: tuple[Format, ...] = get_args(Format)

#: The only column of values without fields.
VALUE = "value"
CORRUPT = "_corrupt"
#: Columns of every topic beside the fields of its values, and the columns of the source they come from.
METADATA = {
    "_key": "key",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "headers",
    "_value": "value",
}
#: The column in which Spark's JSON parser puts a text that it could not parse in full.
_UNPARSED = "__tailrace_unparsed"


def decode(frame: DataFrame, format: Format, schema: str | StructType | None = None) -> DataFrame:
    """Convert a frame of records to their fields; the schema is DDL or a StructType, or an Avro schema as JSON."""
    from pyspark.sql import functions as F

    steps = _STEPS[format](schema)
    metadata = [(name, column) for name, column in METADATA.items() if column in frame.columns]
    # In two steps, otherwise each field would parse the value again.
    inner = frame.select(
        steps.decoded(F.col("value")).alias("decoded"), *(F.col(column).alias(name) for name, column in metadata)
    )
    corrupt = F.when(F.col("_value").isNotNull() & steps.undecodable, F.col("_value"))
    kept = [name for name, _ in metadata]
    # By position, not by name: of two fields that differ only in case, neither can be selected by name.
    flat = inner.select(f"{steps.row}.*", *kept, corrupt.alias(CORRUPT))
    names = [*column_names(steps.fields), *steps.hidden, *kept, CORRUPT]
    return flat.toDF(*names).drop(*steps.hidden)


def undecodable(frame: DataFrame, format: Format, schema: str | StructType | None = None) -> DataFrame:
    """Return the records whose values cannot be decoded, unchanged, with a column `reason`."""
    from pyspark.sql import functions as F

    steps = _STEPS[format](schema)
    decoded = frame.withColumn("decoded", steps.decoded(F.col("value")))
    misfits = decoded.where(F.col("value").isNotNull() & steps.undecodable)
    return misfits.withColumn("reason", steps.reason(F.col("value"))).drop("decoded")


def column_names(fields: Iterable[str]) -> list[str]:
    """Return a name for each field that no other column has, regardless of case: a field `_key` becomes `__key`."""
    taken = {name.lower() for name in (*METADATA, CORRUPT, _UNPARSED)}
    names = []
    for field in fields:
        name = field
        while name.startswith("_") and name.lower() in taken:
            name = "_" + name
        free, number = name, 2
        while free.lower() in taken:
            free, number = f"{name}_{number}", number + 1
        taken.add(free.lower())
        names.append(free)
    return names


def read_schema(text: str) -> tuple[Format, str]:
    """Return the schema in a text or file, and its format: Avro schemas are JSON, others DDL."""
    content = _content(text)
    if content.startswith(("{", "[")) or content.strip('"') != content:
        from tailrace.pipeline.arrow.avro import check_schema

        check_schema(content)
        return "avro", content
    return "json", content


def parse_ddl(text: str) -> StructType:
    """Return the fields that DDL such as `id INT, total DOUBLE` names, or `ConfigError`; needs a running Spark."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    from tailrace.pipeline.spark.errors import words_of

    try:
        fields = StructType.fromDDL(text)
    except PySparkException as error:
        problem = words_of(str(error), text)
        raised = ConfigError(f"the schema is invalid: {problem.problem}; expected DDL such as 'id INT, total DOUBLE'")
        for note in problem.notes:
            raised.add_note(note)
        raise raised from error
    if not isinstance(fields, StructType):
        raise ConfigError(
            f"the schema '{text}' is a single type without fields; expected DDL such as 'id INT, total DOUBLE'"
        )
    return fields


def _content(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(("{", "[")):
        return stripped
    # DDL has a space between a name and its type, and the name of a missing file is not DDL.
    path = Path(stripped).expanduser()
    if path.suffix in (".avsc", ".json", ".ddl", ".sql", ".txt") or (stripped and path.is_file()):
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot read the schema in {path}: {getattr(error, 'strerror', None) or error}"
            ) from None
    return stripped


# --- one function for each format


@dataclass(frozen=True, slots=True)
class _Steps:
    """How a format decodes: the expression, the place of the fields in its result, and when it has failed."""

    decoded: Callable[[Column], Column]
    row: str
    fields: Sequence[str]
    undecodable: Column
    #: Describes why a value is undecodable; may use what was decoded of it.
    reason: Callable[[Column], Column]
    hidden: tuple[str, ...] = ()


def _json(schema: str | StructType | None) -> _Steps:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    if schema is None:
        raise ConfigError("JSON needs a schema, such as 'id INT, total DOUBLE'")
    fields = parse_ddl(schema) if isinstance(schema, str) else schema
    parsed = StructType([*fields.fields, StructField(_UNPARSED, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNPARSED}
    return _Steps(
        lambda value: F.from_json(json_text(value), parsed, options),
        "decoded",
        fields.names,
        F.col("decoded").isNull() | F.col(f"decoded.{_UNPARSED}").isNotNull(),
        lambda value: _json_reason(value, fields),
        (_UNPARSED,),
    )


def _json_reason(value: Column, fields: StructType) -> Column:
    """Name the fields that do not match their types: those that the text has, but that are null."""
    from pyspark.sql import functions as F

    text = json_text(value)
    misfits = [
        F.when(
            F.col("decoded").getField(one.name).isNull() & F.get_json_object(text, f"$['{one.name}']").isNotNull(),
            F.lit(f"{one.name} is not {one.dataType.simpleString()}"),
        )
        for one in fields.fields
        if "'" not in one.name and [name.lower() for name in fields.names].count(one.name.lower()) == 1
    ]
    named = F.concat_ws(", ", *misfits) if misfits else F.lit("")
    return (
        F.when(F.json_object_keys(text).isNull(), F.lit("the value is not a JSON object"))
        .when(named != "", F.concat(F.lit("fields do not fit the schema: "), named))
        .otherwise(F.lit("a field does not fit the schema"))
    )


def json_text(value: Column) -> Column:
    """Convert bytes to text for Spark's JSON parser, which would read only the first object of an array."""
    from pyspark.sql import functions as F

    text = value.cast("string")
    return F.when(F.ltrim(text).startswith("["), F.lit("[")).otherwise(text)


def _avro(schema: str | StructType | None) -> _Steps:
    from pyspark.sql import functions as F

    if not isinstance(schema, str):
        raise ConfigError("Avro needs a schema: the JSON of an .avsc file")
    from tailrace.pipeline.arrow.avro import decode_column, row_type

    def reason(_: Column) -> Column:
        return F.lit("the value does not match the Avro schema")

    return _Steps(decode_column(schema), "decoded.row", row_type(schema).names, F.col("decoded.undecodable"), reason)


def _text(schema: str | StructType | None) -> _Steps:
    from pyspark.sql import functions as F

    _refuse(schema, "text")

    def decoded(value: Column) -> Column:
        text = value.cast("string")
        return F.struct(F.when(F.is_valid_utf8(text), text).alias(VALUE))

    def reason(_: Column) -> Column:
        return F.lit("the value is not UTF-8")

    return _Steps(decoded, "decoded", (VALUE,), F.col(f"decoded.{VALUE}").isNull(), reason)


def _raw(schema: str | StructType | None) -> _Steps:
    from pyspark.sql import functions as F

    _refuse(schema, "raw")
    return _Steps(lambda value: F.struct(value.alias(VALUE)), "decoded", (VALUE,), F.lit(False), lambda _: F.lit(""))


def _refuse(schema: str | StructType | None, format: Format) -> None:
    if schema is not None:
        raise ConfigError(f"format {format} has no fields, so it cannot have a schema")


_STEPS: dict[Format, Callable[[str | StructType | None], _Steps]] = {
    "json": _json,
    "avro": _avro,
    "text": _text,
    "raw": _raw,
}
