"""What the bytes of values mean: JSON, Avro, text or nothing at all, and the columns that come of it.

Owns the columns that a query sees: the fields of the value at top level, then what a record has beside it, under
names that begin with `_`. No value ends a query: one that cannot be decoded stands in `_corrupt`, its fields null.
All is expressions on columns, so that filters on partition, offset and timestamp still reach the source, and batches
and streams are the same. It must not know topics.
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

#: The one column of values that have no fields.
VALUE = "value"
CORRUPT = "_corrupt"
#: Columns that every topic has beside the fields of its values, and the columns of the source they come from.
METADATA = {
    "_key": "key",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "headers",
    "_value": "value",
}
#: Where Spark's parser of JSON leaves a text that it could not parse in full.
_UNPARSED = "__tailrace_unparsed"


def decode(frame: DataFrame, format: Format, schema: str | StructType | None = None) -> DataFrame:
    """A frame of records as a frame of their fields; the schema is DDL or a StructType, or an Avro schema as JSON."""
    from pyspark.sql import functions as F

    steps = _STEPS[format](schema)
    metadata = [(name, column) for name, column in METADATA.items() if column in frame.columns]
    # In two steps: else each field would parse the value anew.
    inner = frame.select(
        steps.decoded(F.col("value")).alias("decoded"), *(F.col(column).alias(name) for name, column in metadata)
    )
    corrupt = F.when(F.col("_value").isNotNull() & steps.undecodable, F.col("_value"))
    kept = [name for name, _ in metadata]
    # By their places, not their names: of two fields that differ in case only, neither can be asked for by name.
    flat = inner.select(f"{steps.row}.*", *kept, corrupt.alias(CORRUPT))
    names = [*column_names(steps.fields), *steps.hidden, *kept, CORRUPT]
    return flat.toDF(*names).drop(*steps.hidden)


def undecodable(frame: DataFrame, format: Format, schema: str | StructType | None = None) -> DataFrame:
    """The records whose values cannot be decoded, as they are, with a column `reason` of words about each."""
    from pyspark.sql import functions as F

    steps = _STEPS[format](schema)
    decoded = frame.withColumn("decoded", steps.decoded(F.col("value")))
    misfits = decoded.where(F.col("value").isNotNull() & steps.undecodable)
    return misfits.withColumn("reason", steps.reason(F.col("value"))).drop("decoded")


def column_names(fields: Iterable[str]) -> list[str]:
    """A name for each field that no other column has, in upper case or lower: a field `_key` becomes `__key`."""
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
    """A schema as given, text or the name of a file, and the format that it is for: Avro's are JSON, others DDL."""
    content = _content(text)
    if content.startswith(("{", "[")) or content.strip('"') != content:
        from tailrace.pipeline.arrow.avro import check_schema

        check_schema(content)
        return "avro", content
    return "json", content


def parse_ddl(text: str) -> StructType:
    """The fields that DDL such as `id INT, total DOUBLE` names, or `ConfigError`; it needs a running Spark."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    from tailrace.pipeline.spark.errors import words_of

    try:
        fields = StructType.fromDDL(text)
    except PySparkException as error:
        problem = words_of(str(error), text)
        raised = ConfigError(f"the schema is not one: {problem.problem}; expected such as 'id INT, total DOUBLE'")
        for note in problem.notes:
            raised.add_note(note)
        raise raised from error
    if not isinstance(fields, StructType):
        raise ConfigError(f"the schema '{text}' is one type without fields; expected such as 'id INT, total DOUBLE'")
    return fields


def _content(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(("{", "[")):
        return stripped
    # DDL has a space between a name and its type, and no file that is not there is taken for it.
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
    """How a format decodes: the expression, where in its result the fields are, and when it has failed."""

    decoded: Callable[[Column], Column]
    row: str
    fields: Sequence[str]
    undecodable: Column
    #: Why a value is undecodable, in words; it may use what was decoded of it.
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
    """Which fields do not fit their types: those that the text has, and that are null all the same."""
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
    """Bytes as text for Spark's parser of JSON, which would take the first object of an array and drop the others."""
    from pyspark.sql import functions as F

    text = value.cast("string")
    return F.when(F.ltrim(text).startswith("["), F.lit("[")).otherwise(text)


def _avro(schema: str | StructType | None) -> _Steps:
    from pyspark.sql import functions as F

    if not isinstance(schema, str):
        raise ConfigError("Avro needs a schema: the JSON of an .avsc file")
    from tailrace.pipeline.arrow.avro import decode_column, row_type

    def reason(_: Column) -> Column:
        return F.lit("the value is not Avro of the schema")

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
        raise ConfigError(f"format {format} has no fields, so that a schema has no place there")


_STEPS: dict[Format, Callable[[str | StructType | None], _Steps]] = {
    "json": _json,
    "avro": _avro,
    "text": _text,
    "raw": _raw,
}
