"""Records that client libraries refuse to send: header names that are not text, any time, invalid headers.

Owns the plain bytes of a batch, written down once more so that nothing of the package checks itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.records.batch import build_header
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.clients.raw_client import RawClient

_VERSION = 7


class RawRecord(NamedTuple):
    """A record to be sent, with names of headers as bytes."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_ms: int = 0


def batch_of(records: Sequence[RawRecord], *, max_timestamp_ms: int | None = None) -> bytes:
    """One batch; its header says the largest time of its records, unless it is told another."""
    base = records[0].timestamp_ms
    body = b"".join(_record(each, each.timestamp_ms - base, delta) for delta, each in enumerate(records))
    largest = max(each.timestamp_ms for each in records) if max_timestamp_ms is None else max_timestamp_ms
    header = build_header(
        body,
        len(records),
        base_offset=0,
        last_offset_delta=len(records) - 1,
        base_timestamp=base,
        max_timestamp=largest,
        leader_epoch=-1,
    )
    return header + body


def produce(
    port: int, topic: str, records: Sequence[RawRecord], partition: int = 0, *, max_timestamp_ms: int | None = None
) -> int:
    """Send one batch and give its first offset."""
    batch = batch_of(records, max_timestamp_ms=max_timestamp_ms)
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    with RawClient(port) as client:
        answer = client.ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]), _VERSION, ProduceResponse)
    (taken,) = answer.responses[0].partition_responses
    assert taken.error_code == 0, taken
    return taken.base_offset


def _record(record: RawRecord, timestamp_delta: int, offset_delta: int) -> bytes:
    body = b"\0" + _varint(timestamp_delta) + _varint(offset_delta) + _bytes(record.key) + _bytes(record.value)
    body += _varint(len(record.headers))
    for name, value in record.headers:
        body += _varint(len(name)) + name + _bytes(value)
    return _varint(len(body)) + body


def _bytes(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while raw >= 0x80:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes((*encoded, raw))
