"""Produce decoded and encoded by hand is byte for byte what its description gives."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import WireError
from tailrace.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tailrace.wire.produce_frames import ProduceResult, decode_produce, encode_produce

VERSIONS = range(ProduceRequest.MIN_VERSION, ProduceRequest.MAX_VERSION + 1)
IDS_FROM = 13

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
record_data = st.none() | st.binary(max_size=300)

topics = st.builds(
    TopicProduceData,
    name=names,
    topic_id=st.uuids(),
    partition_data=st.lists(st.builds(PartitionProduceData, index=int32, records=record_data), max_size=4),
)
requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | names,
    acks=int16,
    timeout_ms=int32,
    topic_data=st.lists(topics, max_size=4),
)
results = st.builds(
    ProduceResult,
    index=int32,
    error_code=int16,
    base_offset=int64,
    append_time_ms=int64,
    log_start_offset=int64,
    message=st.none() | names,
    record_errors=st.lists(st.tuples(int32, names), max_size=3),
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60, derandomize=True)
@given(request=requests)
def test_a_request_decodes_to_what_was_described(version: int, request: ProduceRequest) -> None:
    call = decode_produce(version, memoryview(bytes(request.encode(version)) + b"trailing"))
    assert (call.transactional_id, call.acks, call.timeout_ms) == (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
    )
    assert [
        (
            topic.topic_id if version >= IDS_FROM else topic.name,
            [(data.index, data.records) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ] == call.topics


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60, derandomize=True)
@given(given=st.lists(st.tuples(names, st.uuids(), st.lists(results, max_size=4)), max_size=4))
def test_a_response_encodes_to_the_described_bytes(
    version: int, given: list[tuple[str, UUID, list[ProduceResult]]]
) -> None:
    described = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=result.index,
                        error_code=result.error_code,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.append_time_ms,
                        log_start_offset=result.log_start_offset,
                        record_errors=[
                            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
                            for index, why in result.record_errors
                        ],
                        error_message=result.message,
                    )
                    for result in partitions
                ],
            )
            for name, topic_id, partitions in given
        ]
    )
    by_hand = encode_produce(
        version, [(topic_id if version >= IDS_FROM else name, partitions) for name, topic_id, partitions in given]
    )
    assert by_hand == described.encode(version)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=100, derandomize=True)
@given(request=requests, data=st.data())
def test_what_is_malformed_is_a_wire_error_and_nothing_else(
    version: int, request: ProduceRequest, data: st.DataObject
) -> None:
    body = bytearray(request.encode(version))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    try:
        decode_produce(version, memoryview(body)[:cut])
    except WireError:
        return


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_of_a_request_is_refused(version: int) -> None:
    request = ProduceRequest(
        transactional_id="t",
        acks=1,
        topic_data=[TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=1, records=b"abc")])],
    )
    body = memoryview(request.encode(version))
    for cut in range(len(body)):
        with pytest.raises(WireError):
            decode_produce(version, body[:cut])


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=200, derandomize=True)
@given(body=st.binary(max_size=60))
def test_random_bytes_are_decoded_like_the_description_does_or_refused(version: int, body: bytes) -> None:
    try:
        described = ProduceRequest.decode(version, memoryview(body))
    except WireError:
        with pytest.raises(WireError):
            decode_produce(version, memoryview(body))
        return
    call = decode_produce(version, memoryview(body))
    assert call.acks == described.acks
    assert [len(partitions) for _, partitions in call.topics] == [
        len(topic.partition_data) for topic in described.topic_data
    ]
