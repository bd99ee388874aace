"""Where the replicas of a new topic go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cluster.placement import place_replicas, use_assignment, use_further_assignment
from tailrace.errors import ErrorCode, KafkaError


@settings(deadline=None, max_examples=60)
@given(
    brokers=st.lists(st.integers(0, 1000), min_size=1, max_size=8, unique=True),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_replicas_are_on_different_brokers_and_leaders_are_spread(
    brokers: list[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    states = place_replicas(brokers, partitions, factor)
    assert len(states) == partitions
    for state in states:
        assert len(dict.fromkeys(state.replicas)) == factor
        assert all(broker in brokers for broker in state.replicas)
        assert (state.isr, state.leader, state.leader_epoch) == (state.replicas, state.replicas[0], 0)
    leaders = Counter(state.leader for state in states)
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-1, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -1, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 4, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_what_cannot_be_placed_is_refused(partitions: int, factor: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        place_replicas([1, 2, 3], partitions, factor)
    assert caught.value.code is code


def test_a_given_assignment_is_used_as_it_is() -> None:
    states = use_assignment([1, 2, 3], {1: [3, 1], 0: [2, 3]})
    assert [(state.replicas, state.leader) for state in states] == [((2, 3), 2), ((3, 1), 3)]


@pytest.mark.parametrize("assignment", [{1: [1]}, {0: [1], 2: [1]}, {0: []}, {0: [1, 1]}, {0: [4]}])
def test_an_assignment_that_makes_no_sense_is_refused(assignment: dict[int, list[int]]) -> None:
    with pytest.raises(KafkaError) as caught:
        use_assignment([1, 2, 3], assignment)
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_further_partitions_go_on_where_the_others_ended() -> None:
    whole = place_replicas([1, 2, 3], 8, 2)
    assert place_replicas([1, 2, 3], 5, 2) + place_replicas([1, 2, 3], 3, 2, first=5) == whole


def test_more_partitions_than_one_change_may_have_are_refused_at_once() -> None:
    with pytest.raises(KafkaError) as caught:
        place_replicas([1], 2**31 - 1, 1)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_an_assignment_of_further_partitions_has_as_many_replicas_as_the_others() -> None:
    states = use_further_assignment([1, 2, 3], [[3, 1], [2, 3]], 2)
    assert [(state.replicas, state.leader) for state in states] == [((3, 1), 3), ((2, 3), 2)]
    with pytest.raises(KafkaError, match="not consistent with previous partitions, which have 2 replica"):
        use_further_assignment([1, 2, 3], [[3, 1], [2]], 2)
