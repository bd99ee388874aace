"""ElectLeaders: which leaders a client's request elects, and the errors where none is elected."""

from __future__ import annotations

import pytest

from tailrace.cluster.image import NO_LEADER
from tailrace.cluster.keys import broker_key
from tailrace.errors import ErrorCode
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tests.unit.broker.clusters import Cluster, simulate

PREFERRED, UNCLEAN = 0, 1
DONE = (ErrorCode.NONE, None)
NOT_NEEDED = (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
NOT_PREFERRED = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
NOT_ELIGIBLE = (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")


async def prepare(cluster: Cluster) -> None:
    """Brokers 1 and 2 are there; broker 8 was, and was alone in sync of partition 3."""
    await cluster.register_stranger(8)
    await cluster.create("orders", [[1, 2], [1, 2], [8, 1], [8, 1], [8]])
    await cluster.move("orders", [0], leader=2)
    await cluster.move("orders", [3], isr=(8,))
    cluster.space.txn([], [(broker_key(8), None, 0)])
    await cluster.until(lambda: leaders(cluster) == [2, 1, 1, NO_LEADER, NO_LEADER])


def leaders(cluster: Cluster) -> list[int]:
    return [cluster.state(1, "orders", number).leader for number in range(5)]


async def elect(
    cluster: Cluster, election: int, wanted: dict[str, list[int]] | None, version: int = 2
) -> dict[tuple[str, int], tuple[ErrorCode, str | None]]:
    request = ElectLeadersRequest(
        election_type=election,
        topic_partitions=None
        if wanted is None
        else [TopicPartitions(topic=name, partitions=numbers) for name, numbers in wanted.items()],
    )
    response = await cluster.ask(1, request, version, ElectLeadersResponse)
    assert response.error_code == ErrorCode.NONE
    return {
        (topic.topic, result.partition_id): (ErrorCode(result.error_code), result.error_message)
        for topic in response.replica_election_results
        for result in topic.partition_result
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_preferred_leaders_are_elected_where_they_can_be(version: int) -> None:
    async def test(cluster: Cluster) -> None:
        await prepare(cluster)
        assert await elect(cluster, PREFERRED, {"orders": [0, 1, 2, 3, 7], "none": [0]}, version) == {
            ("orders", 0): DONE,
            ("orders", 1): NOT_NEEDED,
            ("orders", 2): NOT_PREFERRED,
            ("orders", 3): NOT_PREFERRED,
            ("orders", 7): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Partition orders-7 does not exist"),
            ("none", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as none"),
        }
        await cluster.until(lambda: leaders(cluster) == [1, 1, 1, NO_LEADER, NO_LEADER])

    simulate(test, brokers=2)


def test_any_replica_is_elected_where_none_in_sync_is_alive_and_a_client_accepts_the_loss() -> None:
    async def test(cluster: Cluster) -> None:
        await prepare(cluster)
        assert await elect(cluster, UNCLEAN, {"orders": [0, 3, 4]}) == {
            ("orders", 0): NOT_NEEDED,
            ("orders", 3): DONE,
            ("orders", 4): NOT_ELIGIBLE,
        }
        assert leaders(cluster) == [2, 1, 1, 1, NO_LEADER]
        assert cluster.state(1, "orders", 3).isr == (1,)
        answer = await cluster.produce(1, b"goes on", number=3)
        assert answer.error_code == ErrorCode.NONE

    simulate(test, brokers=2)


def test_an_election_for_all_partitions_reports_only_those_that_needed_one() -> None:
    async def test(cluster: Cluster) -> None:
        await prepare(cluster)
        assert await elect(cluster, PREFERRED, None) == {
            ("orders", 0): DONE,
            ("orders", 2): NOT_PREFERRED,
            ("orders", 3): NOT_PREFERRED,
            ("orders", 4): NOT_PREFERRED,
        }
        assert await elect(cluster, UNCLEAN, None) == {("orders", 3): DONE, ("orders", 4): NOT_ELIGIBLE}

    simulate(test, brokers=2)


def test_an_election_of_no_known_kind_is_refused() -> None:
    async def test(cluster: Cluster) -> None:
        response = await cluster.ask(1, ElectLeadersRequest(election_type=7), 2, ElectLeadersResponse)
        assert (response.error_code, response.replica_election_results) == (ErrorCode.INVALID_REQUEST, [])

    simulate(test, brokers=1)


def test_a_store_that_does_not_answer_is_a_timeout() -> None:
    async def test(cluster: Cluster) -> None:
        await prepare(cluster)
        await cluster.brokers[1].metadata._store.close()
        outcome = await elect(cluster, UNCLEAN, {"orders": [3]})
        assert outcome == {("orders", 3): (ErrorCode.REQUEST_TIMED_OUT, "the memory store is closed")}

    simulate(test, brokers=2)
