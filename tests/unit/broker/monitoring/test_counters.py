"""Errors in answers are found wherever a response's description has a place for them."""

from __future__ import annotations

from tailrace.broker.handlers import APIS
from tailrace.broker.monitoring.counters import Counters, RequestCounters, _search, count_errors
from tailrace.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from tests.support.messages import RESPONSES


def errors_in(response: ListOffsetsResponse | DeleteTopicsResponse | MetadataResponse) -> dict[int, int]:
    counters = RequestCounters(10)
    count_errors(counters, response)
    return counters.errors


def test_errors_of_partitions_are_counted_by_code() -> None:
    partitions = [
        ListOffsetsPartitionResponse(partition_index=index, error_code=code) for index, code in enumerate((0, 3, 3, 6))
    ]
    response = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="a", partitions=partitions)] * 2)
    assert errors_in(response) == {3: 4, 6: 2}


def test_errors_at_several_depths_are_all_counted() -> None:
    topic = MetadataResponseTopic(error_code=5, name="a", partitions=[MetadataResponsePartition(error_code=9)])
    assert errors_in(MetadataResponse(topics=[topic])) == {5: 1, 9: 1}


def test_an_answer_without_errors_counts_nothing() -> None:
    assert errors_in(DeleteTopicsResponse(responses=[DeletableTopicResult(name="a")])) == {}


def test_every_api_that_can_refuse_can_be_counted() -> None:
    without = [key for key in APIS if _search(RESPONSES[key]) is None]
    assert without == []


def test_counters_of_an_api_are_made_once() -> None:
    counters = Counters()
    assert counters.of_api(3, 13) is counters.of_api(3, 13)
    counters.refused(3, 5)
    counters.refused(3, 5)
    counters.refused(99, 5)
    assert counters.requests[3].errors == {5: 2}
    assert list(counters.requests) == [3]
