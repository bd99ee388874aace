"""Where the replicas of new partitions go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from types import MappingProxyType
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cluster.image import BrokerImage, ClusterImage, PartitionState, TopicImage
from tailrace.cluster.placement import Load, place_replicas, use_assignment, use_further_assignment
from tailrace.cluster.topic_plans import TopicPlans
from tailrace.errors import ErrorCode, KafkaError


def brokers_of(ids: Iterable[int]) -> dict[int, BrokerImage]:
    return {broker_id: BrokerImage(broker_id, ()) for broker_id in ids}


def topic_of(number: int, states: tuple[PartitionState, ...]) -> TopicImage:
    return TopicImage(f"t{number}", UUID(int=number), states, MappingProxyType({}))


def spread(counts: Counter[int], brokers: Iterable[int]) -> int:
    of_all = [counts[broker_id] for broker_id in brokers]
    return max(of_all) - min(of_all)


BROKERS = brokers_of([1, 2, 3])


@settings(max_examples=60)
@given(
    brokers=st.lists(st.integers(0, 1000), min_size=1, max_size=8, unique=True),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_replicas_are_on_different_brokers_and_leaders_are_spread(
    brokers: list[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    states = place_replicas(brokers_of(brokers), partitions, factor)
    assert len(states) == partitions
    for state in states:
        assert len(dict.fromkeys(state.replicas)) == factor
        assert all(broker in brokers for broker in state.replicas)
        assert (state.isr, state.leader, state.leader_epoch) == (state.replicas, state.replicas[0], 0)
    assert spread(Counter(state.leader for state in states), brokers) <= 1
    assert spread(Counter(broker for state in states for broker in state.replicas), brokers) <= 2


@settings(max_examples=60)
@given(
    places=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=9),
    partitions=st.integers(1, 20),
    data=st.data(),
)
def test_replicas_are_in_as_many_racks_and_then_on_as_many_machines_as_there_are(
    places: list[tuple[str, str]], partitions: int, data: st.DataObject
) -> None:
    brokers = {
        number: BrokerImage(number, (), rack, host=f"{rack}-{host}") for number, (rack, host) in enumerate(places)
    }
    factor = data.draw(st.integers(1, len(brokers)))
    racks = Counter(rack for rack, _ in places)
    for state in place_replicas(brokers, partitions, factor):
        used = Counter(brokers[broker_id].rack for broker_id in state.replicas)
        assert len(used) == min(factor, len(racks))
        # Nobody is second in a rack while another rack has a broker to spare for a first.
        for rack, count in used.items():
            spare = [other for other in racks if racks[other] > used[other] and used[other] < count - 1]
            assert spare == [], (state.replicas, rack)
        for rack in used:
            inside = [brokers[broker_id].host for broker_id in state.replicas if brokers[broker_id].rack == rack]
            machines = dict.fromkeys(broker.host for broker in brokers.values() if broker.rack == rack)
            assert len(dict.fromkeys(inside)) == min(len(inside), len(machines))


@pytest.mark.parametrize(("topics", "partitions", "factor"), [(30, 1, 1), (30, 1, 3), (12, 4, 2), (7, 5, 3)])
def test_leaders_are_spread_over_brokers_across_topics_too(topics: int, partitions: int, factor: int) -> None:
    brokers = brokers_of(range(1, 7))
    made: list[TopicImage] = []
    for number in range(topics):
        made.append(topic_of(number, place_replicas(brokers, partitions, factor, Load.of(made))))
    states = [state for topic in made for state in topic.partitions]
    assert spread(Counter(state.leader for state in states), brokers) <= 1
    assert spread(Counter(broker for state in states for broker in state.replicas), brokers) <= 2


def test_a_new_broker_gets_its_share_of_a_topic_and_not_all_of_it() -> None:
    old = [topic_of(number, place_replicas(BROKERS, 30, 1)) for number in range(4)]
    states = place_replicas(brokers_of([1, 2, 3, 4]), 12, 1, Load.of(old))
    assert Counter(state.leader for state in states) == {1: 3, 2: 3, 3: 3, 4: 3}
    (one,) = place_replicas(brokers_of([1, 2, 3, 4]), 1, 1, Load.of(old))
    assert one.leader == 4


def test_what_one_broker_leads_has_its_other_replicas_on_all_others() -> None:
    states = place_replicas(brokers_of(range(4)), 24, 2)
    pairs = Counter(state.replicas for state in states)
    assert len(pairs) == 12
    assert sorted(pairs.values()) == [2] * 12


def test_ten_thousand_partitions_are_placed_in_less_than_a_second() -> None:
    began = time.process_time()
    assert len(place_replicas(brokers_of(range(10)), 10_000, 3)) == 10_000
    assert time.process_time() - began < 1.0


def test_the_same_brokers_and_load_give_the_same_assignment() -> None:
    load = Load.of([topic_of(1, place_replicas(BROKERS, 5, 2))])
    shuffled = {broker_id: BROKERS[broker_id] for broker_id in (3, 1, 2)}
    again = Load.of([topic_of(1, place_replicas(BROKERS, 5, 2))])
    assert place_replicas(BROKERS, 9, 2, load) == place_replicas(shuffled, 9, 2, again)


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
        place_replicas(BROKERS, partitions, factor)
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
    whole = place_replicas(BROKERS, 8, 2)
    first = place_replicas(BROKERS, 5, 2)
    load = Load.of([topic_of(1, first)])
    assert first + place_replicas(BROKERS, 3, 2, load, beside=first) == whole


def test_more_partitions_than_one_change_may_have_are_refused_at_once() -> None:
    with pytest.raises(KafkaError) as caught:
        place_replicas(BROKERS, 2**31 - 1, 1)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_replicas_that_a_request_chose_itself_do_not_lift_the_limit_on_partitions() -> None:
    with pytest.raises(KafkaError) as caught:
        use_assignment([1, 2, 3], {number: [1] for number in range(10_001)})
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    with pytest.raises(KafkaError) as caught:
        use_further_assignment([1, 2, 3], [[1]] * 10_001, 1)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert len(use_assignment([1, 2, 3], {number: [1] for number in range(10_000)})) == 10_000


@pytest.mark.parametrize("is_manual", [False, True])
def test_the_limit_on_partitions_is_one_of_all_topics_of_a_request(is_manual: bool) -> None:
    plans = TopicPlans(ClusterImage("c", 1, brokers=BROKERS), uuid4)

    def plan(name: str, count: int) -> None:
        assignment = {number: [1] for number in range(count)} if is_manual else {}
        plans.plan(name, 1 if is_manual else count, 1, assignment, {})

    plan("first", 6_000)
    with pytest.raises(KafkaError) as caught:
        plan("second", 6_000)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    plan("third", 4_000)


def test_an_assignment_of_further_partitions_has_as_many_replicas_as_the_others() -> None:
    states = use_further_assignment([1, 2, 3], [[3, 1], [2, 3]], 2)
    assert [(state.replicas, state.leader) for state in states] == [((3, 1), 3), ((2, 3), 2)]
    with pytest.raises(KafkaError, match="not consistent with previous partitions, which have 2 replica"):
        use_further_assignment([1, 2, 3], [[3, 1], [2]], 2)
