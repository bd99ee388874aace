"""kio and kafka-python read what we write, field by field, and write the same bytes again."""

from __future__ import annotations

import datetime
import importlib
import io
import warnings
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from tailrace.model import ZERO_UUID
from tailrace.wire.apis import FIRST_OWN_KEY
from tailrace.wire.codec import Kind, Message, Struct
from tailrace.wire.messages.api_versions import ApiVersionsResponse
from tests.unit.wire.strategies import all_versions, structs, version_id

FEW = settings(
    max_examples=8,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# kio turns these into enums, durations and points in time, which have fewer values than the bytes.
_CODES = st.sampled_from([int(code) for code in KioErrorCode])
KIO_VALUES = {
    "error_code": _CODES,
    "topic_config_error_code": _CODES,
    "partition_error_code": _CODES,
    "log_append_time_ms": st.integers(-1, 4_000_000_000_000),
    "retention_time_ms": st.integers(-1, 4_000_000_000_000),
    "transaction_start_time_ms": st.integers(-1, 4_000_000_000_000),
}
# kafka-python does not speak the newer group protocol.
KAFKA_PYTHON_LACKS = {
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kio_entity(message: type[Message], version: int) -> Any:
    load = load_request_schema if message.__name__.endswith("Request") else load_response_schema
    try:
        return load(message.API_KEY, version)
    except (UnknownEntity, UnknownAPIKey):
        return None


def kafka_python_class(message: type[Message], version: int) -> Any:
    for module in ("metadata", "producer", "consumer", "admin"):
        with warnings.catch_warnings():
            # kafka-python reads its schemas by a function that Python 3.11 calls deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            found = getattr(importlib.import_module(f"kafka.protocol.{module}"), message.__name__, None)
        if found is not None:
            return found if version <= found.max_version else None
    return None


KIO = [pair for pair in all_versions() if kio_entity(*pair) is not None]
KAFKA_PYTHON = [pair for pair in all_versions() if kafka_python_class(*pair) is not None]


def other_value(theirs: Any, name: str) -> Any:
    """What the other library holds for a field: kio drops units, kafka-python has sets of bits with a short name."""
    if name.endswith("authorized_operations"):
        bits = getattr(theirs, name if hasattr(theirs, name) else "authorized_operations")
        if isinstance(bits, int):
            return bits
        number = sum(1 << bit for bit in ({31} if bits is None else bits))
        return number - (1 << 32) if number >> 31 else number
    return getattr(theirs, name if hasattr(theirs, name) else name.removesuffix("_ms"))


def plain(value: Any) -> Any:
    """A value of another library as ours would hold it."""
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // datetime.timedelta(milliseconds=1)
    return value


def assert_same_fields(ours: Struct, theirs: Any, version: int) -> None:
    """Each field that the version has holds the same in both."""
    for name, field in ours.FIELDS.items():
        if not field.in_version(version):
            continue
        mine = getattr(ours, name)
        other = other_value(theirs, name)
        if field.kind is Kind.STRUCT:
            assert field.struct is not None
            # None stands for a struct of defaults; kafka-python has None there too, kio builds the struct.
            if other is not None:
                assert_same_fields(field.struct() if mine is None else mine, other, version)
            else:
                assert mine is None or mine == field.struct()
        elif field.kind is Kind.ARRAY and mine is not None and field.struct is not None:
            assert len(mine) == len(other)
            for one, another in zip(mine, other, strict=True):
                assert_same_fields(one, another, version)
        elif field.kind is Kind.ARRAY and mine is not None:
            assert mine == list(other)
        elif field.kind is Kind.UUID:
            assert mine == (ZERO_UUID if other is None else UUID(str(other)))
        elif name == "log_append_time_ms" and other is None:
            assert mine == -1
        else:
            assert mine == plain(other)


@pytest.mark.parametrize(("message", "version"), KIO, ids=version_id)
def test_kio_reads_and_writes_the_same(message: type[Message], version: int) -> None:
    entity = kio_entity(message, version)
    read, write = entity_reader(entity), entity_writer(entity)

    @FEW
    @given(structs(message, version, KIO_VALUES))
    def holds(value: Any) -> None:
        body = bytes(value.encode(version))
        theirs, size = read(body, 0)
        assert size == len(body)
        assert_same_fields(value, theirs, version)
        again = io.BytesIO()
        write(again, theirs)
        assert again.getvalue() == body
        assert message.decode(version, again.getvalue()) == value

    holds()


@pytest.mark.parametrize(("message", "version"), KAFKA_PYTHON, ids=version_id)
def test_kafka_python_reads_and_writes_the_same(message: type[Message], version: int) -> None:
    codec = kafka_python_class(message, version)
    # An ApiVersions response with an error is version 0 to kafka-python, whatever was asked for.
    narrowed = {"error_code": st.just(0)} if message is ApiVersionsResponse else {}

    @FEW
    @given(structs(message, version, narrowed))
    def holds(value: Any) -> None:
        body = bytes(value.encode(version))
        theirs = codec.decode(body, version=version)
        assert_same_fields(value, theirs, version)
        if codec.is_request():
            theirs.with_header()
        again = theirs.encode()
        assert again == body
        assert message.decode(version, again) == value

    holds()


def test_both_libraries_cover_every_api_that_they_know() -> None:
    served = {message.__name__ for message, _ in all_versions() if message.API_KEY < FIRST_OWN_KEY}
    assert {message.__name__ for message, _ in KIO} == served
    assert {message.__name__ for message, _ in KAFKA_PYTHON} == served - KAFKA_PYTHON_LACKS
