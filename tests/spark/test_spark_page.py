"""The programs on the page about Spark run as they stand, apart from addresses and folders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tailrace.pipeline.jobs.declaration import Table, load
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record
from tests.support.spark.spark import started
from tests.support.topics import create_topic

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
SAMPLE_DATA = ROOT / "examples" / "sample_data.py"
PATIENCE_SECONDS = 600


def program(heading: str) -> str:
    """The first Python program under a heading."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def orders(broker: BrokerProcess, topic_name: Callable[[], str]) -> str:
    """A topic with three orders."""
    topic = create_topic(broker.bootstrap, topic_name())
    records = [Record(f'{{"id": {n}, "amount": {n * 80.0}}}'.encode()) for n in range(3)]
    ConfluentClient(broker.bootstrap).produce(topic, records)
    return topic


def test_the_first_query_shows_what_is_in_the_topic(
    spark: SparkSession, broker: BrokerProcess, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = program("Install").replace("127.0.0.1:9092", broker.bootstrap).replace('"orders"', f'"{orders}"')
    exec(code, {})
    shown = capsys.readouterr().out
    assert re.findall(r'\| *0\| *(\d)\|\{"id": (\d), "am', shown) == [("0", "0"), ("1", "1"), ("2", "2")]


def test_rows_are_read_and_written_once_and_for_ever(
    spark: SparkSession, broker: BrokerProcess, orders: str, tmp_path: Path
) -> None:
    copies = create_topic(broker.bootstrap, f"{orders}-copies")
    once, follow, write, write_on = program("The data source").split("\n\n")[1:]
    names = {
        "spark": spark,
        "server": {"kafka.bootstrap.servers": broker.bootstrap},
    }

    def run(piece: str) -> None:
        code = piece.replace('"orders"', f'"{orders}"').replace('"copies"', f'"{copies}"')
        exec(code.replace("/var/lib/copies", str(tmp_path)), names)

    def start() -> StreamingQuery:
        run(write_on)
        (query,) = spark.streams.active
        return query

    for piece in (once, write, follow):
        run(piece)
    query = started(start)
    try:
        written = ConfluentClient(broker.bootstrap).consume(copies, 0, 6, timeout_seconds=PATIENCE_SECONDS)
    finally:
        query.stop()
    values = [f'{{"id": {n}, "amount": {n * 80.0}}}'.encode() for n in range(3)]
    assert [one.value for one in written] == values * 2


def test_a_job_can_be_called_without_topics(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "large_orders.py").write_text(program("Jobs"))
    job = load(tmp_path / "large_orders.py")["large-orders"]
    assert job.sink == Table("large-orders")
    rows = spark.createDataFrame([("a", 99.0), ("b", 100.0), ("c", 101.0)], job.sources[0].schema)
    assert [row.id for row in job(rows).collect()] == ["b", "c"]
    assert [row.id for row in job(rows, least=101.0).collect()] == ["c"]


def test_the_schema_of_the_job_fits_the_orders_of_the_examples(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "large_orders.py").write_text(program("Jobs"))
    (source,) = load(tmp_path / "large_orders.py")["large-orders"].sources
    made = subprocess.run(
        [sys.executable, str(SAMPLE_DATA), source.name], capture_output=True, text=True, timeout=60, check=True
    )
    values = [json.loads(json.loads(line)["value"]) for line in made.stdout.splitlines()]
    amounts = [value["amount"] for value in values]
    # createDataFrame refuses a value of another type than the schema's.
    rows = spark.createDataFrame([(value["id"], value["amount"]) for value in values], source.schema)
    assert rows.where("amount >= 100").count() == sum(1 for amount in amounts if amount >= 100)
