"""`tailrace sql` on a real Spark against a real broker: what was produced is what a query sees.

All tests but the last three share one session and one set of topics, and call what the command calls.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import SparkSession

from tailrace.cli.spark_progress import ProgressLine
from tailrace.cli.sql import reading_of, run
from tailrace.client import Producer, Topics
from tailrace.errors import ConfigError, TailraceError
from tests.support.batches.poison import DAMAGES, poison_batch, produce_batch
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.spark.job_run import send_json
from tests.support.topics import create_topic

PAYMENT = {
    "type": "record",
    "name": "payment",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "paid", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}
DAY_MS = 24 * 3600 * 1000
NEW_YEAR_MS = 1_767_225_600_000
ORDERS = 60


@dataclass(frozen=True)
class Shop:
    """The topics that all queries of this file are over."""

    spark: SparkSession
    bootstrap: str
    folder: Path

    def query(self, text: str, **options: Any) -> None:
        """Run a query as the command does."""
        chosen = {name: options.pop(name, default) for name, default in READING.items()}
        reading = reading_of(self.bootstrap, **chosen)
        topics = [topic.name for topic in Topics(self.bootstrap).list()]
        run(self.spark, text, reading, topics, ProgressLine("", shown=False), **options)


READING: dict[str, Any] = {"formats": (), "schemas": (), "start": "earliest", "end": "latest"}


def avro(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(PAYMENT), value)
    return stream.getvalue()


@pytest.fixture(scope="module")
def shop(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Orders as JSON, one a day, with three invalid ones; payments as Avro in both framings; lines of text."""
    bootstrap = broker.bootstrap
    folder = tmp_path_factory.mktemp("shop")
    (folder / "payment.avsc").write_text(json.dumps(PAYMENT))
    topics = Topics(bootstrap)
    for name, partitions in (("orders", 3), ("payments", 2), ("web-clicks.v1", 1), ("shop.lines", 1), ("nothing", 1)):
        topics.create(name, partitions=partitions)
    with Producer(bootstrap) as producer:
        for number in range(ORDERS):
            order = {"id": number, "status": ("new", "sent", "paid")[number % 3], "lines": [{"sku": "ä", "n": number}]}
            producer.send(
                "orders",
                json.dumps(order),
                key=f"customer-{number % 7}",
                headers=[("trace", b"t")],
                timestamp_ms=NEW_YEAR_MS + number * DAY_MS,
                partition=number % 3,
            )
            if number % 2 == 0:
                payment = {"order_id": number, "paid": number / 2, "at": NEW_YEAR_MS + number, "tags": {"a": number}}
                framing = b"\0\0\0\0\7" if number % 4 else b""
                producer.send("payments", framing + avro(payment), partition=number // 2 % 2)
            producer.send("shop.lines", f"line {number}")
        for broken in (b"not json", b"\xff\xfe", None):
            producer.send("orders", broken, key="broken", timestamp_ms=NEW_YEAR_MS, partition=0)
        producer.send("payments", b"not avro", partition=0)
        producer.send("shop.lines", b"\xff")
        producer.send("web-clicks.v1", json.dumps({"url": "/", "URL": "/2", "_key": "inner", "a.b": True}))
    return Shop(spark, bootstrap, folder)


@pytest.fixture
def rows_of(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Run a query with --json, and read its lines back."""

    def ask(text: str, **options: Any) -> list[dict[str, Any]]:
        capsys.readouterr()
        shop.query(text, as_json=True, **options)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


def test_json_is_guessed_and_all_columns_are_there(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    rows = rows_of("SELECT * FROM orders WHERE _partition = 1 AND _offset BETWEEN 1 AND 2 ORDER BY _offset")
    assert rows == [
        {
            "id": number,
            "lines": [{"n": number, "sku": "ä"}],
            "status": "sent",
            "_key": f"customer-{number % 7}",
            "_partition": 1,
            "_offset": number // 3,
            "_timestamp": f"2026-01-{1 + number:02}T00:00:00.000Z",
            "_headers": [{"key": "trace", "value": "t"}],
            "_value": json.dumps({"id": number, "status": "sent", "lines": [{"sku": "ä", "n": number}]}),
            "_corrupt": None,
        }
        for number in (4, 7)
    ]


def test_aggregates_count_every_record_once(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    assert rows_of("SELECT status, count(*) n, sum(id) ids FROM orders GROUP BY ALL ORDER BY status NULLS LAST") == [
        {"status": "new", "n": 20, "ids": sum(range(0, ORDERS, 3))},
        {"status": "paid", "n": 20, "ids": sum(range(2, ORDERS, 3))},
        {"status": "sent", "n": 20, "ids": sum(range(1, ORDERS, 3))},
        {"status": None, "n": 3, "ids": None},
    ]
    # A query that needs no columns still reads records.
    assert rows_of("SELECT count(*) AS n FROM orders") == [{"n": ORDERS + 3}]


def test_what_cannot_be_decoded_stands_beside_the_rest(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    rows = rows_of("SELECT id, _corrupt, _value FROM orders WHERE _key = 'broken' ORDER BY _offset")
    assert rows == [
        {"id": None, "_corrupt": "not json", "_value": "not json"},
        {"id": None, "_corrupt_base64": "//4=", "_value_base64": "//4="},
        {"id": None, "_corrupt": None, "_value": None},
    ]


def test_a_given_schema_chooses_fields_and_types(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    schemas = (("orders", "id STRING, status INT, missing DOUBLE"),)
    (row,) = rows_of("SELECT * EXCEPT (_timestamp, _headers) FROM orders WHERE id = '5'", schemas=schemas)
    assert (row["id"], row["status"], row["missing"], row["_key"]) == ("5", None, None, "customer-5")
    # "paid" is not an INT: the value is kept in _corrupt.
    assert json.loads(row["_corrupt"])["status"] == "paid"


def test_avro_is_decoded_bare_and_framed_and_joins_json(
    rows_of: Callable[..., list[dict[str, Any]]], shop: Shop
) -> None:
    schemas = (("payments", str(shop.folder / "payment.avsc")),)
    rows = rows_of(
        "WITH late AS (SELECT * FROM orders WHERE id >= 50) "
        "SELECT late.id, paid, at, tags, status FROM late JOIN payments p ON p.order_id = late.id ORDER BY 1",
        schemas=schemas,
    )
    assert rows == [
        {
            "id": number,
            "paid": number / 2,
            "at": f"2026-01-01T00:00:00.0{number}Z",
            "tags": {"a": number},
            "status": ("new", "sent", "paid")[number % 3],
        }
        for number in range(50, ORDERS, 2)
    ]
    broken = rows_of("SELECT _offset, paid, _corrupt FROM payments WHERE _corrupt IS NOT NULL", schemas=schemas)
    assert broken == [{"_offset": 15, "paid": None, "_corrupt": "not avro"}]


def test_a_dotted_name_needs_no_quotes_and_lines_are_text(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    rows = rows_of("SELECT value, _offset, _corrupt FROM shop.lines WHERE _offset >= 59 ORDER BY _offset")
    assert rows == [
        {"value": "line 59", "_offset": 59, "_corrupt": None},
        {"value": None, "_offset": 60, "_corrupt_base64": "/w=="},
    ]
    raw = rows_of("SELECT value FROM `shop.lines` WHERE _offset = 60", formats=((None, "raw"),))
    assert raw == [{"value_base64": "/w=="}]


def test_fields_whose_names_are_taken_get_others(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    rows = rows_of("SELECT * EXCEPT (_timestamp, _value) FROM `web-clicks.v1`")
    (row,) = rows
    names = {name: value for name, value in row.items() if not name.startswith("_") or name == "__key"}
    assert sorted(names.items()) in (
        [("URL", "/2"), ("__key", "inner"), ("a.b", True), ("url_2", "/")],
        [("URL_2", "/2"), ("__key", "inner"), ("a.b", True), ("url", "/")],
    )
    assert row["_key"] is None


def test_names_in_the_query_itself_are_no_topics(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    rows = rows_of(
        "WITH nosuch AS (VALUES (1), (2)) SELECT count(*) AS n FROM (SELECT * FROM nosuch) AS other, nosuch AS again"
    )
    assert rows == [{"n": 4}]


def test_topics_in_subqueries_are_found(rows_of: Callable[..., list[dict[str, Any]]], shop: Shop) -> None:
    rows = rows_of(
        "SELECT id FROM orders WHERE id IN (SELECT order_id FROM payments) AND id < (SELECT 7) ORDER BY id",
        schemas=(("payments", str(shop.folder / "payment.avsc")),),
    )
    assert [row["id"] for row in rows] == [0, 2, 4, 6]


def test_times_limit_what_is_read(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    span = {"start": NEW_YEAR_MS + 30 * DAY_MS, "end": NEW_YEAR_MS + 33 * DAY_MS}
    rows = rows_of("SELECT id FROM orders ORDER BY id", **span)
    assert [row["id"] for row in rows] == [30, 31, 32]
    rows = rows_of("SELECT id FROM orders WHERE _timestamp > '2026-02-27T00:00:00Z' ORDER BY id")
    assert [row["id"] for row in rows] == [58, 59]
    assert rows_of("SELECT * FROM orders", start=NEW_YEAR_MS + 1000 * DAY_MS) == []


def test_a_table_is_aligned_and_says_how_much_it_is(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.query("SELECT id, status, lines FROM orders WHERE id IN (3, 44) ORDER BY id")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "id  status  lines",
        ' 3  new     [{"n": 3, "sku": "ä"}]',
        '44  paid    [{"n": 44, "sku": "ä"}]',
    ]
    assert printed.err.splitlines()[-1].startswith("2 rows, ")
    shop.query("SELECT _offset FROM orders WHERE _partition = 1 ORDER BY 1 DESC", limit=2, quiet=True)
    assert capsys.readouterr() == ("_offset\n     19\n     18\n", "")


def test_describe_and_explain_work_on_topics(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.query("DESCRIBE shop.lines")
    described = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["value", "string"] in described
    assert ["_timestamp", "timestamp"] in described
    shop.query("EXPLAIN SELECT id FROM orders WHERE _offset > 5")
    plan = capsys.readouterr().out
    assert plan.startswith("== Physical Plan ==\n")
    # Only columns that the query needs are read.
    assert "BatchScan tailrace[value#" in plan
    assert "timestamp#" not in plan


def test_parquet_and_csv_hold_what_the_query_gave(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = "SELECT id, status, lines, _timestamp, _value FROM orders ORDER BY id NULLS LAST, _offset"
    shop.query(everything, output=str(tmp_path / "orders.parquet"))
    assert f"{ORDERS + 3} rows to {tmp_path / 'orders.parquet'}, " in capsys.readouterr().err
    table = pyarrow.parquet.read_table(tmp_path / "orders.parquet")
    assert table.column("id").to_pylist() == [*range(ORDERS), None, None, None]
    assert table.column("_value").to_pylist()[-2:] == [b"\xff\xfe", None]
    assert table.column("lines")[5].as_py() == [{"n": 5, "sku": "ä"}]

    shop.query(everything, output=str(tmp_path / "orders"))
    folder = pyarrow.parquet.read_table(tmp_path / "orders")
    assert folder.sort_by("id").select(["id", "_value"]).equals(table.sort_by("id").select(["id", "_value"]))
    assert f"{ORDERS + 3} rows to" in capsys.readouterr().err

    shop.query(everything, output=str(tmp_path / "orders.csv"))
    lines = pyarrow.csv.read_csv(tmp_path / "orders.csv").to_pylist()
    assert [line["id"] for line in lines] == [*range(ORDERS), None, None, None]
    assert json.loads(lines[5]["lines"]) == [{"n": 5, "sku": "ä"}]
    assert lines[-2]["_value"] == "//4="
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders", "orders.csv", "orders.parquet"]


def test_an_empty_result_is_a_file_with_its_columns(shop: Shop, tmp_path: Path) -> None:
    shop.query("SELECT id, status FROM orders WHERE id < 0", output=str(tmp_path / "none.parquet"))
    assert pyarrow.parquet.read_schema(tmp_path / "none.parquet").names == ["id", "status"]


def test_a_query_that_fails_leaves_no_file(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(TailraceError, match="Division by zero"):
        shop.query("SELECT id / (id - id) AS x FROM orders", output=str(tmp_path / "x.parquet"))
    with pytest.raises(TailraceError, match="the result has two columns 'id'"):
        shop.query("SELECT id, id FROM orders", output=str(tmp_path / "x.parquet"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "problem", "notes"),
    [
        ("SELECT * FROM ordrs", "topic 'ordrs' does not exist; did you mean `orders`?", []),
        ("SELECT * FROM Orders", "topic 'Orders' does not exist; did you mean `orders`?", []),
        ("SELECT * FROM qqqq", "topic 'qqqq' does not exist; list all topics with: tailrace topic list", []),
        (
            "SELECT id,\n  totl FROM orders",
            "there is no column `totl`; did you mean `lines`, `id`, `_key`, `_value`, `status`?",
            ["LINE 2:   totl FROM orders", "          ^"],
        ),
        ("SELEC 1", "Syntax error at or near 'SELEC'", ["LINE 1: SELEC 1", "        ^"]),
        ("SELECT id FROM orders WHERE id =", "Syntax error at or near end of input", None),
        (
            "SELECT id FROM web-clicks.v1",
            "The unquoted identifier web-clicks is invalid and must be back quoted as: `web-clicks`",
            [
                "LINE 1: SELECT id FROM web-clicks.v1",
                "                          ^",
                "put a topic's name with other characters than letters, digits and _ in backquotes: `web-clicks.v1`",
            ],
        ),
        ("DROP TABLE orders", "only queries can run here", None),
        ("INSERT INTO orders SELECT 1", "only queries can run here", None),
        ("SHOW TABLES", "only queries can run here", None),
        ("SELECT x FROM nothing", "there is no column `x`", None),
        (
            "SELECT id / (id - id) FROM orders",
            "Division by zero",
            ["LINE 1: SELECT id / (id - id) FROM orders", "               ^"],
        ),
    ],
)
def test_a_wrong_query_is_told_in_the_users_words(shop: Shop, text: str, problem: str, notes: list[str] | None) -> None:
    with pytest.raises(TailraceError) as caught:
        shop.query(text)
    if "did you mean `lines`" in problem:
        # Spark determines the order of similar names.
        problem = problem.split(";")[0]
    assert str(caught.value).startswith(problem)
    assert "\tat " not in str(caught.value)
    if notes is not None:
        assert getattr(caught.value, "__notes__", []) == notes


def test_columns_guessed_from_nothing_are_said_to_be(shop: Shop) -> None:
    with pytest.raises(TailraceError) as caught:
        shop.query("SELECT id FROM nothing")
    assert caught.value.__notes__[-1] == "topic 'nothing' has no values to guess columns from; name them with --schema"
    shop.query("SELECT id FROM nothing", schemas=((None, "id INT"),))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"formats": (("nosuch", "json"),)}, "for 'nosuch', but the query does not read it"),
        ({"formats": ((None, "avro"),)}, "values of topic 'orders' are Avro and need --schema"),
        ({"schemas": ((None, "id NUMBERS"),)}, "the schema is invalid: Unsupported data type"),
    ],
)
def test_wrong_options_for_values_are_refused(shop: Shop, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        shop.query("SELECT * FROM orders", **options)


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    small = ("--master", "local[1]", "--conf", "spark.driver.memory=1g")
    with subprocess.Popen(
        [sys.executable, "-m", "tailrace", "sql", *arguments, *small],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            # A failed test must not wait for a query that never ends.
            process.kill()


def test_the_command_prints_its_rows_and_not_a_line_of_sparks(shop: Shop) -> None:
    query = "SELECT id, status FROM orders WHERE id < 2 ORDER BY id"
    with command(query, "--json", "--bootstrap", shop.bootstrap) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert out == '{"id": 0, "status": "new"}\n{"id": 1, "status": "sent"}\n'
    warning, count = err.splitlines()
    assert warning.startswith("Warning: 2 values of topic 'orders' are not JSON objects"), err
    assert count.startswith("2 rows, ")


def test_an_interrupted_command_ends_with_130_and_leaves_no_java_behind(shop: Shop) -> None:
    endless = "SELECT sum(id % 7) FROM range(1000000000000000)"
    with command(endless, "--bootstrap", shop.bootstrap, TAILRACE_SPARK_LOG="info") as process:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if "Running task" in line:
                break
        else:
            pytest.fail("".join(said))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        java = [child for child in children if "java" in Path(f"/proc/{child}/comm").read_text()]
        assert len(java) == 1
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert not Path(f"/proc/{java[0]}").exists()


def test_the_command_names_a_batch_that_nobody_can_decode_or_skips_it(broker: BrokerProcess, topic: str) -> None:
    sent = [[{"id": number} for number in numbers] for numbers in (range(3), range(3, 5), range(5, 8))]
    create_topic(broker.bootstrap, topic)
    send_json(broker.bootstrap, topic, sent[0])
    assert produce_batch(broker.port, topic, poison_batch([b"x"] * 4)) == 3
    send_json(broker.bootstrap, topic, sent[1])
    assert produce_batch(broker.port, topic, DAMAGES["more records than it says, packed"]()) == 9
    send_json(broker.bootstrap, topic, sent[2])
    query = (f"SELECT id, _offset FROM `{topic}`", "--json", "--bootstrap", broker.bootstrap)

    with command(*query) as process:
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (1, "")
    assert err.startswith(f"Error: the batch at offsets 3 to 6 of {topic}-0 cannot be decoded: "), err
    assert err.endswith("(tailrace sql and replay: --skip-corrupt)\n"), err

    with command(*query, "--skip-corrupt") as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows == [{"id": id, "_offset": offset} for id, offset in enumerate([0, 1, 2, 7, 8, 10, 11, 12])]
    # One line of the sample of which columns are guessed, and one of the query, which comes from another process.
    skipped = f"{topic}-0: skipped 2 batches of 5 offsets that cannot be decoded, at offsets 3 to 6, 9 to 9 ("
    lines = sorted(err.splitlines())
    assert [line.startswith(skipped) for line in lines] == [False, True, True], err
    assert lines[0].startswith("8 rows, ")
