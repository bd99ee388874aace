"""`tailrace sql` before it needs Spark: options and refusals."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tailrace.cli.main import cli
from tailrace.cli.sql import OfTopicType, WhenType, reading_of

AVRO = json.dumps({"type": "record", "name": "payment", "fields": [{"name": "paid", "type": "double"}]})


@pytest.fixture
def nowhere() -> str:
    """An address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("json", (None, "json")),
        ("orders=json", ("orders", "json")),
        ("web-clicks.v1=text", ("web-clicks.v1", "text")),
    ],
)
def test_a_format_is_for_one_topic_or_for_all(text: str, pair: tuple[str | None, str]) -> None:
    assert OfTopicType("FORMAT", ("json", "text")).convert(text, None, None) == pair


def test_an_equals_sign_behind_what_is_no_topic_belongs_to_the_schema() -> None:
    schema = OfTopicType("SCHEMA")
    assert schema.convert("id INT COMMENT 'a=b'", None, None) == (None, "id INT COMMENT 'a=b'")
    assert schema.convert("orders=id INT, b DOUBLE", None, None) == ("orders", "id INT, b DOUBLE")


def test_a_moment_is_a_time_or_so_long_ago() -> None:
    when = WhenType("earliest")
    assert when.convert("earliest", None, None) == "earliest"
    assert when.convert("2026-01-31T12:00:00Z", None, None) == 1769860800000
    assert when.convert("1769860800000", None, None) == 1769860800000
    before = int(time.time() * 1000) - 7_200_000
    ago = when.convert("2h", None, None)
    assert isinstance(ago, int)
    assert before <= ago <= int(time.time() * 1000) - 7_200_000


def test_a_schema_says_the_format_where_no_option_does(tmp_path: Path) -> None:
    (tmp_path / "payment.avsc").write_text(AVRO)
    schemas = ((None, "id INT"), ("payments", str(tmp_path / "payment.avsc")))
    reading = reading_of("127.0.0.1:1", (("lines", "text"),), schemas, "earliest", "latest")
    assert reading.values_of("payments") == ("avro", AVRO)
    assert reading.values_of("orders") == ("json", "id INT")
    assert reading.values_of("lines") == ("text", None)


def test_nothing_said_leaves_all_to_be_guessed() -> None:
    reading = reading_of("127.0.0.1:1", (), (), "earliest", "latest")
    assert reading.values_of("orders") == (None, None)
    assert reading.options("orders") == {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}


def test_times_are_no_options_of_the_source() -> None:
    reading = reading_of("127.0.0.1:1", (), (), 1000, 2000)
    assert (reading.start_ms, reading.end_ms, reading.has_times) == (1000, 2000, True)
    assert reading.options("orders") == {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}


def test_batches_that_nobody_can_decode_are_skipped_only_where_that_is_asked_for() -> None:
    reading = reading_of("127.0.0.1:1", (), (), "earliest", "latest", skips_corrupt=True)
    assert reading.options("orders")["failOnCorruptBatch"] == "false"


def test_a_schema_that_does_not_fit_the_format_is_a_usage_error() -> None:
    with pytest.raises(click.UsageError, match=r"--schema has an Avro schema, but --format is json\."):
        reading_of("127.0.0.1:1", ((None, "json"),), ((None, AVRO),), "earliest", "latest")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["SELECT 1", "--format", "xml"], "'xml' is not one of json, avro, text, raw."),
        (["SELECT 1", "--format", "orders="], "'' is not one of"),
        (["SELECT 1", "--schema", "orders="], "it must not be empty."),
        (["SELECT 1", "--format", "json", "--format", "text"], "--format is given twice for all topics."),
        (["SELECT 1", "--from", "yesterday"], "'yesterday' is neither earliest, a time such as"),
        (["SELECT 1", "--from", "latest"], "'latest' is neither earliest"),
        (["SELECT 1", "--to", "earliest"], "'earliest' is neither latest"),
        (["SELECT 1", "--from", "1h", "--to", "2h"], "--from must not be after --to."),
        (["SELECT 1", "--json", "--output", "x"], "--json prints the result"),
        (["SELECT 1", "--overwrite"], "need --output."),
        (["SELECT 1", "--conf", "nonsense"], "'nonsense' is not NAME=VALUE."),
        (["SELECT 1", "--conf", "a=1", "--conf", "a=2"], "--conf gives 'a' twice."),
        (["SELECT 1", "--limit", "-1"], "-1 is not between 0 and"),
        (["  "], "The query must not be empty."),
        ([], "Missing argument 'QUERY'."),
    ],
    ids=str,
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(cli, ["sql", *arguments])
    assert result.exit_code == 2
    assert problem in result.stderr


@pytest.mark.parametrize(
    ("schema", "problem"),
    [("{nonsense", "the Avro schema is not JSON"), ("nosuch.avsc", "cannot read the schema in nosuch.avsc")],
)
def test_a_wrong_schema_is_refused_before_anything_is_started(schema: str, problem: str) -> None:
    result = CliRunner().invoke(cli, ["sql", "SELECT 1", "--schema", schema])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_an_output_that_is_there_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["sql", "SELECT 1", "--output", str(tmp_path)])
    assert result.exit_code == 2
    assert "already exists" in result.stderr


def test_without_java_it_says_what_to_install(tmp_path: Path, nowhere: str) -> None:
    environment = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    result = CliRunner().invoke(cli, ["sql", "SELECT 1", "--bootstrap", nowhere], env=environment)
    assert result.exit_code == 1
    assert "Spark needs Java, but none was found; install Java 17 or later" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unreachable_broker_is_told_before_spark_is_started(nowhere: str) -> None:
    result = CliRunner().invoke(cli, ["sql", "SELECT * FROM orders", "--bootstrap", nowhere])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"cannot reach a broker at {nowhere}" in result.stderr


def test_an_unknown_log_level_of_spark_is_refused(nowhere: str) -> None:
    result = CliRunner().invoke(cli, ["sql", "SELECT 1"], env={"TAILRACE_SPARK_LOG": "loud"})
    assert result.exit_code == 2
    assert "TAILRACE_SPARK_LOG is 'loud'" in result.stderr
