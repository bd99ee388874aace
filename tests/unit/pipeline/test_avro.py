"""Avro values as Arrow columns: every type, both framings, and values that do not fit."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from tailrace.pipeline.arrow.avro import decode_batch, row_type

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 5000, tzinfo=UTC)


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "shop.order", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return stream.getvalue()


def decoded(schema: Any, *values: bytes | None) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = decode_batch(json.dumps(schema), pa.array(values, type=pa.binary())).to_pylist()
    return result


ORDER = record(("id", "long"), ("name", "string"))
APPLE = {"id": 7, "name": "apple"}


@pytest.mark.parametrize(
    ("kind", "value", "spark", "seen"),
    [
        ("boolean", True, "boolean", True),
        ("int", -5, "int", -5),
        ("long", 2**40, "bigint", 2**40),
        ("float", 0.5, "float", 0.5),
        ("double", 0.1, "double", 0.1),
        ("bytes", b"\xff", "binary", b"\xff"),
        ("string", "ä", "string", "ä"),
        (["null", "string"], None, "string", None),
        (["null", "string"], "x", "string", "x"),
        (["int", "long"], 2**40, "bigint", 2**40),
        (["float", "double"], 0.5, "double", 0.5),
        (["int", "string"], 5, "string", "5"),
        (["null", "int", {"type": "array", "items": "int"}], [1, 2], "string", "[1, 2]"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", "string", "B"),
        ({"type": "fixed", "name": "f", "size": 2}, b"ab", "binary", b"ab"),
        ({"type": "array", "items": "int"}, [1, 2], "array<int>", [1, 2]),
        ({"type": "map", "values": "int"}, {"a": 1}, "map<string,int>", [("a", 1)]),
        (
            {"type": "map", "values": {"type": "map", "values": "int"}},
            {"a": {"b": 1}},
            "map<string,map<string,int>>",
            [("a", [("b", 1)])],
        ),
        (
            {"type": "array", "items": {"type": "map", "values": "int"}},
            [{"a": 1}],
            "array<map<string,int>>",
            [[("a", 1)]],
        ),
        (
            {"type": "record", "name": "r", "fields": [{"name": "q", "type": "int"}]},
            {"q": 1},
            "struct<q:int>",
            {"q": 1},
        ),
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), "date", date(2026, 1, 31)),
        ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT, "timestamp", MOMENT),
        ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT, "timestamp", MOMENT),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            MOMENT.replace(tzinfo=None),
            "timestamp_ntz",
            MOMENT.replace(tzinfo=None),
        ),
        ({"type": "int", "logicalType": "time-millis"}, 5, "int", 5),
        ({"type": "string", "logicalType": "uuid"}, "not-even-one", "string", "not-even-one"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("-1.25"),
            "decimal(9,2)",
            Decimal("-1.25"),
        ),
    ],
    ids=str,
)
def test_every_type_has_its_counterpart(kind: Any, value: Any, spark: str, seen: Any) -> None:
    schema = record(("id", "long"), ("it", kind))
    # Written as the plain type where a logical one is not looked at.
    plain = kind["type"] if isinstance(kind, dict) and kind.get("logicalType") in ("time-millis", "uuid") else kind
    data = encoded(record(("id", "long"), ("it", plain)), {"id": 1, "it": value})
    assert row_type(json.dumps(schema))["it"].dataType.simpleString() == spark
    assert decoded(schema, data) == [{"row": {"id": 1, "it": seen}, "undecodable": False}]


def test_a_type_may_be_named_again() -> None:
    schema = record(("first", {"type": "fixed", "name": "pair", "size": 2}), ("second", ["null", "shop.pair"]))
    data = encoded(schema, {"first": b"ab", "second": b"cd"})
    assert decoded(schema, data)[0]["row"] == {"first": b"ab", "second": b"cd"}


def test_a_schema_without_fields_has_one_column() -> None:
    assert decoded("long", encoded("long", 5)) == [{"row": {"value": 5}, "undecodable": False}]


def test_the_wire_format_of_confluent_is_seen_at_each_value() -> None:
    bare = encoded(ORDER, APPLE)
    assert [one["row"] for one in decoded(ORDER, bare, b"\0\0\0\1\2" + bare)] == [APPLE, APPLE]


def test_a_bare_value_that_begins_with_zeros_is_itself() -> None:
    zeros = {"id": 0, "name": ""}
    assert encoded(ORDER, zeros) == b"\0\0"
    assert decoded(ORDER, encoded(ORDER, zeros))[0]["row"] == zeros


def test_what_does_not_fit_to_its_last_byte_is_undecodable() -> None:
    data = encoded(ORDER, APPLE)
    values = [data + b"x", data[:-1], b"", b"junk", b"\0\0\0\0\5", data]
    assert [one["undecodable"] for one in decoded(ORDER, *values)] == [True, True, True, True, True, False]


def test_a_null_is_a_null_and_not_undecodable() -> None:
    assert decoded(ORDER, None) == [{"row": None, "undecodable": False}]


def test_a_number_beyond_its_type_spoils_only_its_own_row() -> None:
    schema = record(("id", "int"))
    large = encoded(record(("id", "long")), {"id": 2**40})
    small = encoded(schema, {"id": 3})
    assert [(one["row"], one["undecodable"]) for one in decoded(schema, small, large, small)] == [
        ({"id": 3}, False),
        (None, True),
        ({"id": 3}, False),
    ]
