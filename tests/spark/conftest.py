"""One Spark session and one real broker for all tests of the folder, and topics of their own for each.

The session has the jars of Spark's own Kafka connector on its class path, so that `format("kafka")` and
`format("tailrace")` stand side by side. A test that kills a driver, or needs a cluster, starts its own processes.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.pipeline.spark.worker_python import command_beside_python
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.spark.spark import connector_jars

#: Python's warnings about pyspark, pandas and py4j, which no test here can prevent.
NOT_OURS = (
    # Sockets between the driver and the JVM are closed by the collector, not by pyspark.
    "ignore:unclosed <socket:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_report_header() -> str:
    """Name the pair of versions: `make test FOLDERS=spark PYSPARK=…` chooses it."""
    (connector,) = (path.stem for path in connector_jars() if path.name.startswith("spark-sql-kafka-0-10_"))
    return f"pyspark {version('pyspark')} with {connector}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow these warnings; all others are errors."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for rule in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(rule))


@pytest.fixture(scope="session", autouse=True)
def brief_java() -> Iterator[None]:
    """Let every Java process compile quickly: none runs long enough to gain from more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of all tests: two cores, little memory, nothing left behind."""
    work = tmp_path_factory.mktemp("spark")
    for folder in ("tmp", "warehouse", "checkpoints"):
        (work / folder).mkdir()
    conf = {
        "spark.master": "local[2]",
        "spark.app.name": "tailrace tests",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work / 'tmp'}",
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.local.dir": str(work / "tmp"),
        "spark.log.level": "ERROR",
        # On a busy machine a worker may take long to start.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointLocation": str(work / "checkpoints"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    # Otherwise Spark looks for an address of the machine, and warns.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Otherwise its workers are the first python3 on the path, whatever is installed there.
    os.environ["PYSPARK_PYTHON"] = command_beside_python()
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the whole session, with the default configuration except for the interval of retention checks.

    Tests send records that are months old, and read them before retention removes them.
    """
    config = {"log.retention.check.interval.ms": str(24 * 3600 * 1000)}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config=config) as process:
        yield process


_numbers = itertools.count()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test has used."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.removeprefix("test_").lower())[:80]
    return lambda: f"{test}-{next(_numbers)}"


@pytest.fixture
def topic(topic_name: Callable[[], str]) -> str:
    """A name that no other test has used; the topic itself is the test's to create."""
    return topic_name()
