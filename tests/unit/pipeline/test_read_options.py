"""Options mean the same as to Spark's Kafka connector; errors name the problem and what is expected."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.model import TopicPartition
from tailrace.pipeline.failures import OptionError
from tailrace.pipeline.source.client_settings import READ_COMMITTED, READ_UNCOMMITTED
from tailrace.pipeline.source.offsets import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    from_stream_offset,
    to_stream_offset,
)
from tailrace.pipeline.source.options import ReadOptions, Selection, chosen_by_options, parse_read_options
from tailrace.pipeline.source.schema import COLUMNS, DEFAULT_COLUMNS, arrow_schema, spark_schema

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def parse(*, streaming: bool = False, **options: str) -> ReadOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return parse_read_options(CaseInsensitiveDict({**SERVERS, "subscribe": "a", **given}), streaming=streaming)


def test_defaults_are_those_of_the_connector() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert (batch.starting, batch.ending) == (EARLIEST_POSITION, LATEST_POSITION)
    assert stream.starting == LATEST_POSITION
    for options in (batch, stream):
        assert options.fail_on_data_loss
        assert options.columns == DEFAULT_COLUMNS
        assert options.client.isolation_level == READ_UNCOMMITTED
        assert options.selection == Selection(topics=("a",))
        assert (options.min_partitions, options.max_records_per_partition) == (None, None)
        assert options.poll_timeout_ms == 120_000
        assert options.max_trigger_delay_ms == 15 * 60_000


def test_positions_by_time_go_before_those_by_offset() -> None:
    by_offset = {"startingOffsets": '{"a": {"0": 5, "1": -2}}'}
    assert parse(**by_offset).starting == AtOffsets({TopicPartition("a", 0): 5, TopicPartition("a", 1): -2})
    by_each_time = {**by_offset, "startingOffsetsByTimestamp": '{"a": {"0": 1700}}'}
    assert parse(**by_each_time).starting == AtTimestamps({TopicPartition("a", 0): 1700})
    assert parse(**by_each_time, startingTimestamp="1800").starting == AtTimestamp(1800)
    assert parse(endingTimestamp="1900").ending == AtTimestamp(1900)


def test_names_and_words_are_case_insensitive() -> None:
    options = parse(STARTINGOFFSETS="Earliest", failondataloss="FALSE", kafka__Isolation__Level="READ_COMMITTED")
    assert options.starting == EARLIEST_POSITION
    assert not options.fail_on_data_loss
    assert options.client.isolation_level == READ_COMMITTED


def test_columns_are_chosen_in_the_order_given() -> None:
    assert chosen_by_options({"columns": "offset, VALUE"}) == ("offset", "value")
    assert chosen_by_options({"columns": "offset", "includeHeaders": "true"}) == ("offset", "headers")
    assert chosen_by_options({"includeHeaders": "true"}) == COLUMNS


def test_both_schemas_say_the_same() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert to_arrow_schema(spark_schema(COLUMNS), timezone="UTC").equals(arrow_schema(COLUMNS))


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000), ("1d", 86_400_000), ("250", 250)]
)
def test_delays_have_units(text: str, milliseconds: int) -> None:
    assert parse(streaming=True, maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


def test_settings_of_a_consumer_that_change_nothing_are_accepted() -> None:
    parse(kafka__max__poll__records="500", kafka__security__protocol="PLAINTEXT", groupIdPrefix="spark")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"path": "orders"}, "a topic has no path"),
        ({"topic": "orders"}, "to read a topic use 'subscribe'"),
        ({"bootstrap__servers": "a:1"}, "did you mean 'kafka.bootstrap.servers'"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "no topic!"}, "contains one or more characters other than"),
        ({"subscribePattern": "a.*"}, "not both subscribe and subscribePattern"),
        ({"startingOffsets": "first"}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "has the offset -3 for a-0"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "expected JSON such as"),
        ({"startingOffsets": '{"a": {"0": 1.5}}'}, "expected JSON such as"),
        ({"startingOffsets": '{"a": '}, "expected JSON such as"),
        ({"endingOffsets": "earliest"}, "cannot be the earliest"),
        ({"startingTimestamp": "-5"}, "expected a whole number of at least 0"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -5}}'}, "has the time -5 for a-0"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "expected error or latest"),
        ({"minPartitions": "0"}, "expected a whole number of at least 1"),
        ({"failOnDataLoss": "maybe"}, "expected true or false"),
        ({"columns": "offset,size"}, "a topic has no column 'size'"),
        ({"kafka__bootstrap__servers": "localhost"}, "has 'localhost'; expected HOST:PORT"),
        ({"kafka__bootstrap__servers": "localhost:99999"}, "expected HOST:PORT"),
        ({"kafka__bootstrap__server": "localhost:1"}, "did you mean 'kafka.bootstrap.servers'"),
        ({"kafka__auto__offset__reset": "earliest"}, "use 'startingOffsets'"),
        ({"kafka__enable__auto__commit": "true"}, "never commits by itself"),
        ({"kafka__security__protocol": "SASL_SSL"}, "only supports plaintext connections"),
        ({"kafka__ssl__truststore__location": "x"}, "only supports plaintext connections"),
        ({"kafka__isolation__level": "serializable"}, "expected read_uncommitted or read_committed"),
        ({"kafka__request__timeout__ms": "soon"}, "expected a whole number"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(**options)
    assert message in str(refused.value)


def test_where_no_server_is_given_it_is_said_how() -> None:
    with pytest.raises(OptionError, match=r"'kafka\.bootstrap\.servers' is missing"):
        parse_read_options({"subscribe": "a"}, streaming=False)


def test_offsets_survive_a_checkpoint_and_have_one_order() -> None:
    offsets = {TopicPartition("b", 10): 3, TopicPartition("a", 2): 1, TopicPartition("b", 9): 2}
    kept = to_stream_offset(offsets)
    assert [list(kept), list(kept["b"])] == [["a", "b"], ["9", "10"]]
    assert from_stream_offset(kept) == offsets
