"""Names of columns, and schemas as they are given; decoding itself is shown on Spark, in tests/spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.pipeline.arrow.formats import column_names, read_schema

AVRO = json.dumps({"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]})


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (["id", "total"], ["id", "total"]),
        (["_key", "id"], ["__key", "id"]),
        (["_KEY", "__key"], ["__KEY", "___key"]),
        (["_corrupt", "_id"], ["__corrupt", "_id"]),
        (["id", "ID", "Id"], ["id", "ID_2", "Id_3"]),
        (["id", "id_2", "ID"], ["id", "id_2", "ID_3"]),
        ([], []),
    ],
)
def test_a_field_whose_name_is_taken_gets_one_that_is_free(fields: list[str], names: list[str]) -> None:
    assert column_names(fields) == names


def test_ddl_is_for_json() -> None:
    assert read_schema(" id INT, total DOUBLE ") == ("json", "id INT, total DOUBLE")


@pytest.mark.parametrize("schema", [AVRO, '"string"', '["null", "long"]'])
def test_json_is_an_avro_schema(schema: str) -> None:
    assert read_schema(schema) == ("avro", schema)


def test_a_schema_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(AVRO + "\n")
    (tmp_path / "fields").write_text("id INT\n")
    assert read_schema(str(tmp_path / "order.avsc")) == ("avro", AVRO)
    assert read_schema(str(tmp_path / "fields")) == ("json", "id INT")


def test_a_file_that_is_not_there_is_not_taken_for_ddl(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the schema in .*order\.avsc: No such file"):
        read_schema(str(tmp_path / "order.avsc"))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{nonsense", "the Avro schema is not JSON"),
        ('{"type": "record"}', "the Avro schema is invalid"),
        ('{"type": "nosuch"}', "the Avro schema is invalid"),
        ('{"type": "record", "name": "r", "fields": [{"name": "r", "type": ["null", "r"]}]}', "r contains itself"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}', "Spark allows at most 38"),
    ],
)
def test_a_wrong_avro_schema_is_refused(schema: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_schema(schema)
