"""A Spark standalone cluster, a master and two workers, runs queries and jobs with tailrace installed as a wheel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archives.archiving import Ambush, archived_records, large_records, verified
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record
from tests.support.spark.spark_cluster import EXECUTOR_MEMORY_MB, SparkCluster, clean_environment
from tests.support.topics import create_topic
from tests.support.wheel import build_wheel, run

PATIENCE_SECONDS = 600
PARTITIONS = 4
RECORDS = 4000
#: How many a batch of the job takes, so that there are several to come when a worker is lost.
RECORDS_PER_BATCH = 500

CONF = {
    "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    # Both executors take part from the first task on; without the number of cores, Spark would not wait for any.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}

#: Reads a topic, and asks each task which installation it runs on. Arguments: master, bootstrap, topic, conf as JSON.
QUERY = """
import json, os, sys
import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

def installation(batches):
    import os
    import pyspark_tailrace
    import tailrace
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({
            "executor": [os.getppid()], "tailrace": [tailrace.__file__], "source": [pyspark_tailrace.__file__],
        })

master, bootstrap, topic, conf = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master(master).appName("query")
for name, value in json.loads(conf).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.read.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
found = rows.groupBy("partition").agg(f.count("*").alias("rows"), f.min("offset"), f.max("offset")).orderBy("partition")
tasks = spark.range(0, 8, 1, 8).mapInArrow(installation, "executor long, tailrace string, source string").collect()
print(json.dumps({"partitions": [list(row) for row in found.collect()], "tasks": [list(row) for row in tasks]}))
spark.stop()
"""

JOB = """
from pyspark.sql import DataFrame
from tailrace.pipeline.jobs.declaration import Topic, job

@job(source=Topic("{origin}", schema="id LONG"), sink=Topic("{target}", key="id"))
def halves(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("id", "id / 2 AS half")
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment with tailrace from its wheel.

    Spark and the other dependencies are found in the environment of the tests, as they would be copied for minutes; the
    checkout, which is installed there through a .pth file, is not found: such files are read in an environment's own
    folder only.
    """
    environment = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    wheel = build_wheel(tmp_path_factory.mktemp("dist"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    clean = clean_environment()
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", environment=clean).strip()
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), workers=2) as processes:
        yield processes


@pytest.fixture(scope="module")
def orders(broker: BrokerProcess) -> str:
    """A topic of JSON values, numbered over its partitions."""
    topic = create_topic(broker.bootstrap, "cluster-orders", partitions=PARTITIONS)
    records = [Record(json.dumps({"id": n}).encode(), partition=n % PARTITIONS) for n in range(RECORDS)]
    ConfluentClient(broker.bootstrap).produce(topic, records)
    return topic


def conf_options() -> list[str]:
    return [part for name, value in CONF.items() for part in ("--conf", f"{name}={value}")]


def test_a_batch_query_runs_on_both_workers_with_the_installed_wheel(
    installation: Path, cluster: SparkCluster, broker: BrokerProcess, orders: str, tmp_path: Path
) -> None:
    script = tmp_path / "query.py"
    script.write_text(QUERY)
    output = run(
        installation / "python",
        script,
        cluster.url,
        broker.bootstrap,
        orders,
        json.dumps(CONF),
        environment=clean_environment(),
        timeout_seconds=PATIENCE_SECONDS,
    )
    answer = json.loads(output.splitlines()[-1])
    each = RECORDS // PARTITIONS
    assert answer["partitions"] == [[number, each, 0, each - 1] for number in range(PARTITIONS)]
    environment = str(installation.parent)
    assert all(path.startswith(environment) for _, *paths in answer["tasks"] for path in paths), answer["tasks"]
    assert len({executor for executor, *_ in answer["tasks"]}) == 2


def test_sql_runs_on_the_cluster_that_is_named(
    installation: Path, cluster: SparkCluster, broker: BrokerProcess, orders: str
) -> None:
    output = run(
        installation / "tailrace",
        "sql",
        f"SELECT count(*) AS orders, sum(id) AS total FROM `{orders}` WHERE id % 2 = 0",
        *("--format", "json", "--schema", "id LONG", "--json"),
        *("--master", cluster.url, "--bootstrap", broker.bootstrap),
        *conf_options(),
        environment=clean_environment(),
        timeout_seconds=PATIENCE_SECONDS,
    )
    assert json.loads(output.splitlines()[-1]) == {"orders": RECORDS // 2, "total": sum(range(0, RECORDS, 2))}


def test_a_topic_is_archived_whole_when_an_executor_is_killed_while_it_writes(
    installation: Path, cluster: SparkCluster, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = create_topic(broker.bootstrap, "cluster-history", partitions=PARTITIONS)
    ConfluentClient(broker.bootstrap).produce(topic, large_records(2 * RECORDS, PARTITIONS))
    place = tmp_path / "archive"

    def kill_executor() -> bool:
        (executor, *_) = [pid for worker in cluster.workers() for pid in cluster.executors(worker)]
        os.kill(executor, signal.SIGKILL)
        return True

    ambush = Ambush(place, lambda name: ".parquet" in name, kill_executor, times=1)
    ambush.start()
    try:
        output = run(
            *(installation / "tailrace", "pipeline", "archive", topic, "--to", place, "--once", "--json"),
            *("--master", cluster.url, "--bootstrap", broker.bootstrap),
            *conf_options(),
            environment=clean_environment(),
            timeout_seconds=PATIENCE_SECONDS,
        )
    finally:
        ambush.end()
    assert ambush.struck == 1
    assert sum(json.loads(line)["rows"] for line in output.splitlines()) == 2 * RECORDS
    assert verified(broker.bootstrap, topic).rows == 2 * RECORDS
    for number in range(PARTITIONS):
        found = archived_records(broker.bootstrap, topic, number)
        assert [each.offset for each in found] == list(range(2 * RECORDS // PARTITIONS))


def test_a_job_goes_on_when_a_worker_is_lost(
    installation: Path, cluster: SparkCluster, broker: BrokerProcess, orders: str, tmp_path: Path
) -> None:
    target = create_topic(broker.bootstrap, "cluster-halves", partitions=1)
    (tmp_path / "halves.py").write_text(JOB.format(origin=orders, target=target))
    command = [
        *(installation / "tailrace", "pipeline", "run", tmp_path / "halves.py", "--once", "--json"),
        *("--max-offsets-per-trigger", str(RECORDS_PER_BATCH), "--checkpoint", tmp_path / "checkpoint"),
        *("--master", cluster.url, "--bootstrap", broker.bootstrap),
        *conf_options(),
    ]
    errors = tmp_path / "job.err"
    with errors.open("wb") as stderr:
        job = subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=stderr, env=clean_environment(), cwd="/", text=True
        )
    assert job.stdout is not None
    try:
        lines = [job.stdout.readline()]
        assert lines[0], errors.read_text()
        lost, kept = cluster.workers()
        assert cluster.executors(lost)
        cluster.kill_worker(lost)
        lines += job.stdout.readlines()
        assert job.wait(PATIENCE_SECONDS) == 0, errors.read_text()
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
        job.stdout.close()
    assert len(lines) >= RECORDS // RECORDS_PER_BATCH
    cluster.wait_for_workers(1)
    assert os.path.exists(f"/proc/{kept}")
    ends = ConfluentClient(broker.bootstrap).offsets(target, [0])
    written = ConfluentClient(broker.bootstrap).consume(target, 0, ends[0][1], timeout_seconds=PATIENCE_SECONDS)
    # At least once: a batch whose task was lost is written again.
    assert {one.key: json.loads(one.value or b"") for one in written} == {
        str(n).encode(): {"id": n, "half": n / 2} for n in range(RECORDS)
    }
    described = run(
        *(installation / "tailrace", "group", "describe", "tailrace-pipeline-halves", "--json"),
        *("--bootstrap", broker.bootstrap),
        environment=clean_environment(),
    )
    assert json.loads(described)["lag"] == 0
