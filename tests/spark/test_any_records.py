"""Whatever is produced, every path returns the same rows as a plain reader in Python.

The paths without Spark are in `tests/support/spark/read_paths.py`. A further kind of record is one more entry in
`RECORDS`. Batches that nobody can decode lie between others: each path gives all the others, and says what it left out
if it can know. The quick paths take many examples, those through Spark a few.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

from tailrace.archive import header_names
from tailrace.archive.layout import TopicArchive
from tailrace.archive.location import open_location
from tailrace.archive.quarantine import read_side_file, wrong_batches
from tailrace.cli.sql import reading_of
from tailrace.pipeline.archiving.plan import Piece
from tailrace.pipeline.archiving.task import FileTask, Written, write_file
from tailrace.pipeline.failures import CorruptBatchError
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.sql.queries import TopicQuery, TopicReading
from tailrace.records.batch import read_header
from tests.support.batches.poison import DAMAGES, fetch_batches, produce_batch
from tests.support.batches.raw_records import RawRecord, produce
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.spark.read_paths import MOST_MS, PATHS, Poison, Produced, Row, by_data_source, in_spark
from tests.support.topics import create_topic

#: Records of one batch, or the name of one of `DAMAGES`: a batch that nobody can decode.
Batch: TypeAlias = list[RawRecord] | str
#: The 15th of October 1582.
GREGORIAN_MS = -12_219_292_800_000
NOON_MS = 1_767_268_800_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ANY_TIME = str((1 << 63) - 1)

# --- what is produced

TIMES = st.one_of(
    st.sampled_from([-1, 0, NOON_MS, 253_402_300_800_000, -62_135_596_800_001, 1 << 61, -(1 << 61)]),
    st.integers(NOON_MS - 5000, NOON_MS + 5000),
)
NUMBERS = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
FIELDS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.lists(st.integers(0, 9), max_size=2),
    st.fixed_dictionaries({"x": st.integers(0, 9)}),
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(["n", "m"]), FIELDS).map(lambda value: json.dumps(value).encode())
NO_OBJECTS = st.sampled_from([b"", b"5", b'"n"', b"null", b'[{"n": 1}, {"n": 2}]', b"{", b"\xff\xfe", b"n/a"])
VALUES = st.one_of(st.none(), OBJECTS, OBJECTS, NO_OBJECTS, st.just(b'{"n": "' + b"x" * 300_000 + b'"}'))
NAMES = st.one_of(st.sampled_from([b"trace", b"", b"\xff", header_names.MARK.encode()]), st.binary(max_size=3))
RECORDS = st.builds(
    RawRecord,
    value=VALUES,
    key=st.none() | st.binary(max_size=4),
    headers=st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    timestamp_ms=TIMES,
)
SOUND = st.lists(RECORDS, min_size=1, max_size=5)
BATCHES = st.lists(SOUND, min_size=1, max_size=4)
MIXED_BATCHES = st.tuples(
    st.lists(SOUND, min_size=1, max_size=3), st.lists(st.sampled_from(sorted(DAMAGES)), min_size=1, max_size=3)
).flatmap(lambda both: st.permutations([*both[0], *both[1]]))
WINDOWS = st.tuples(st.integers(NOON_MS - 5000, NOON_MS + 5000), st.integers(0, 5000))


#: One of each kind, so that few examples include all.
ODD_BATCHES: list[Batch] = [
    [RawRecord(b'{"n": %d}' % number, timestamp_ms=NOON_MS + 1000 * number) for number in range(3)],
    [
        RawRecord(b'{"n": 1.5, "m": [1]}', b"k", ((b"\xff", b"v"), (b"trace", None)), NOON_MS + 1_800_000),
        RawRecord(b'{"n": "text", "m": {"x": 1}}', None, ((header_names.MARK.encode(), b""),), -1),
        RawRecord(None, b"gone", (), -86_400_000),
        RawRecord(b'[{"n": 1}, {"n": 2}]', timestamp_ms=NOON_MS - 1),
        RawRecord(b'{"n": "' + b"x" * 300_000 + b'"}', timestamp_ms=253_402_300_800_000),
    ],
    [RawRecord(b"\xff\xfe", timestamp_ms=NOON_MS + 500), RawRecord(b"5"), RawRecord(b"{}"), RawRecord(b"")],
]
#: Each damage once, with a record before and after it.
EVERY_DAMAGE: list[Batch] = [
    batch for number, damage in enumerate(sorted(DAMAGES)) for batch in ([RawRecord(b"%d" % number)], damage)
] + [[RawRecord(b"last")]]
#: Several together, at the beginning and at the end.
MANY_DAMAGES: list[Batch] = [
    "gzip that is not gzip",
    "a header without a name",
    *ODD_BATCHES,
    "fewer records than it says, packed",
    "bytes behind the headers",
    "zstd that is not zstd",
    *ODD_BATCHES[:1],
    "more records than it says",
]
FAR_TIMES: list[Batch] = [
    [RawRecord(b"{}", timestamp_ms=time) for time in (1 << 61, NOON_MS, -(1 << 61), -1, -62_135_596_800_001)]
]


_numbers = itertools.count()


def produced_by(broker: BrokerProcess, directory: Path, batches: Sequence[Batch]) -> Produced:
    """Produce batches to a new topic, and archive them to a file."""
    topic = f"any-records-{next(_numbers)}"
    create_topic(broker.bootstrap, topic, message_timestamp_after_max_ms=ANY_TIME)
    rows: list[Row] = []
    poison: list[Poison] = []
    end = 0
    for batch in batches:
        if isinstance(batch, str):
            damaged = DAMAGES[batch]()
            assert produce_batch(broker.port, topic, damaged) == end
            poison.append(Poison(end, end + read_header(damaged).record_count, damaged))
            end = poison[-1].end
        else:
            assert produce(broker.port, topic, batch) == end
            rows += [
                Row(offset, record.timestamp_ms, record.key, record.value, record.headers)
                for offset, record in enumerate(batch, end)
            ]
            end += len(batch)
    place = directory / topic
    place.mkdir()
    client = parse_client_settings({"bootstrap.servers": broker.bootstrap})
    archive = TopicArchive(str(place), topic, uuid4(), None)
    written = write_file(FileTask(client, archive.uri, archive.lineage, Piece(topic, 0, 0, 0, end, 1 << 30, 0.0)))
    assert isinstance(written, Written), written
    (file,) = place.rglob("*.parquet")
    return Produced(broker, topic, tuple(rows), tuple(poison), end, file, written, archive)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any-records")


SOME = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
FEW = settings(SOME, max_examples=1)


@SOME
@example(batches=ODD_BATCHES, window=(NOON_MS, 1000))
@example(batches=FAR_TIMES, window=(NOON_MS, 1000))
@given(batches=BATCHES, window=WINDOWS)
def test_every_path_gives_the_records_that_were_produced(
    broker: BrokerProcess,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    batches: list[Batch],
    window: tuple[int, int],
) -> None:
    produced = produced_by(broker, directory, batches)
    check_paths(produced, window, caplog)
    assert produced.written.side_file is None
    for name, path in PATHS.items():
        if path.strict is not None:
            assert path.strict(produced) == [path.view(row) for row in produced.rows], name


@SOME
@example(batches=EVERY_DAMAGE, window=(0, 1))
@example(batches=MANY_DAMAGES, window=(NOON_MS, 1000))
@example(batches=["gzip that is cut"], window=(NOON_MS, 1000))
@given(batches=MIXED_BATCHES, window=WINDOWS)
def test_every_path_gives_the_other_records_where_batches_cannot_be_decoded(
    broker: BrokerProcess,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    batches: list[Batch],
    window: tuple[int, int],
) -> None:
    produced = produced_by(broker, directory, batches)
    check_paths(produced, window, caplog)
    for name, path in PATHS.items():
        if path.strict is not None:
            with pytest.raises(CorruptBatchError) as caught:
                path.strict(produced)
            assert str(caught.value).startswith(produced.corrupt_batch()), name
    # How a client handles such a batch is its own matter. It gets what was produced.
    for each in produced.poison:
        for offset in (each.first, each.end - 1):
            sent = fetch_batches(broker.port, produced.topic, offset)
            assert (read_header(sent).base_offset, sent[8:12]) == (each.first, each.batch[8:12])
            # Before that is the leader epoch, which the broker writes as it does the offset.
            assert sent[16 : len(each.batch)] == each.batch[16:]
    # Exactly these batches are quarantined in the archive.
    location = open_location(produced.archive.uri)
    side_file = produced.written.side_file
    assert side_file is not None
    content = read_side_file(location, produced.archive.directory, side_file)
    assert [(batch.header.base_offset, batch.header.next_offset, batch.data[16:]) for batch in content] == [
        (each.first, each.end, each.batch[16:]) for each in produced.poison
    ]
    assert side_file.batches == len(produced.poison)
    assert side_file.records == sum(each.end - each.first for each in produced.poison)
    assert list(wrong_batches(side_file, content)) == []


def check_paths(produced: Produced, window: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    """Check that each path returns the decodable rows, and reports the others if it can know of them."""
    for name, path in PATHS.items():
        caplog.clear()
        assert path.read(produced) == [path.view(row) for row in produced.rows], name
        # Nothing else is said: brokers that were asked in place of files would be.
        expected = produced.skipped_batches() if path.strict is not None else []
        assert len(caplog.messages) == len(expected), (name, caplog.messages)
        for message, start in zip(caplog.messages, expected, strict=True):
            assert message.startswith(start), name
    low, high = window[0], window[0] + window[1]
    found = by_data_source(
        produced, GreaterThanOrEqual(("timestamp",), moment(low)), LessThan(("timestamp",), moment(high))
    )
    assert found == [in_spark(row) for row in produced.rows if low <= row.timestamp_ms < high]


def moment(timestamp_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=timestamp_ms)


# --- paths through Spark


@FEW
@example(batches=ODD_BATCHES, window=(NOON_MS, 1000))
@example(batches=MANY_DAMAGES, window=(NOON_MS, 1000))
@given(batches=st.lists(st.lists(RECORDS, min_size=4, max_size=8), min_size=4, max_size=6), window=WINDOWS)
def test_spark_gives_the_records_that_can_be_decoded_and_no_silent_null(
    spark: SparkSession,
    broker: BrokerProcess,
    directory: Path,
    batches: list[Batch],
    window: tuple[int, int],
) -> None:
    produced = produced_by(broker, directory, batches)
    expected = [in_spark(row) for row in produced.rows]
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": produced.topic, "includeHeaders": "true"}
    source = spark.read.format("tailrace").options(**options)
    skips: dict[str, str] = {"failOnCorruptBatch": "false"} if produced.poison else {}
    if produced.poison:
        strict = reading_of(broker.bootstrap, ((None, "json"),), (), "earliest", "latest")
        for read in (source.load, query_of(spark, produced.topic, strict).frame):
            with pytest.raises(Exception, match=re.escape(produced.corrupt_batch())):
                read().collect()
    assert spark_rows(source.options(**skips).load()) == expected
    if not produced.poison and all(GREGORIAN_MS <= row.timestamp_ms <= MOST_MS for row in produced.rows):
        # The connector counts earlier days by the Julian calendar, and overflows where a time is further away.
        assert spark_rows(spark.read.format("kafka").options(**options).load()) == expected

    low, high = window[0], window[0] + window[1]
    inside = [row for row in produced.rows if low <= row.timestamp_ms < high]
    for chosen, start, end in ((produced.rows, "earliest", "latest"), (inside, low, high)):
        reading = reading_of(broker.bootstrap, ((None, "json"),), (), start, end, skips_corrupt=bool(produced.poison))
        check_query(query_of(spark, produced.topic, reading), chosen)


def query_of(spark: SparkSession, topic: str, reading: TopicReading) -> TopicQuery:
    """The query for everything in a topic."""
    return TopicQuery(spark, f"SELECT * FROM `{topic}` ORDER BY _offset", reading, [topic])


def check_query(query: TopicQuery, chosen: Sequence[Row]) -> None:
    """Check that a query returns the chosen records, their fields, and the undecodable values."""
    frame = query.frame()
    frame.sparkSession.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    fields = [name for name in ("n", "m") if name in frame.columns]
    seen = frame.selectExpr("_offset", "_value", "_corrupt", *(f"{name} IS NOT NULL AS {name}" for name in fields))
    rows = [row.asDict() for row in seen.orderBy("_offset").collect()]
    assert [(row["_offset"], as_bytes(row["_value"])) for row in rows] == [(row.offset, row.value) for row in chosen]
    for row in rows:
        plain = plain_object(as_bytes(row["_value"]))
        assert (row["_corrupt"] is None) == (plain is not None), row
        for name in ("n", "m"):
            assert row.get(name, False) == (plain is not None and plain.get(name) is not None), row


def spark_rows(frame: DataFrame) -> list[Row]:
    chosen = frame.selectExpr("offset", "unix_millis(timestamp) AS time", "key", "value", "headers")
    return [
        Row(
            row.offset,
            row.time,
            as_bytes(row.key),
            as_bytes(row.value),
            tuple((one.key.encode(), as_bytes(one.value)) for one in row.headers or ()),
        )
        for row in chosen.orderBy("offset").collect()
    ]


def as_bytes(content: bytearray | bytes | None) -> bytes | None:
    return None if content is None else bytes(content)


def plain_object(value: bytes | None) -> dict[str, Any] | None:
    """The fields of a value, none where it is null, and None where it is something else."""
    if value is None:
        return {}
    try:
        content = json.loads(value.decode())
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
