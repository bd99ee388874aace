"""In which order a benchmark runs, and what it expects of the rest."""

from __future__ import annotations

from bench.harness.plan import START_SECONDS, Estimate, make_plan, turns
from bench.harness.suite import Block, Group
from bench.suites.peers import FULL_GROUPS, KAFKA_PROTOCOL, OTHER_PEERS, PEER_GROUP, QUICK_GROUPS
from bench.workloads.single import Latency, OneMessage
from bench.workloads.target import Target
from bench.workloads.warm_up import SMALL_REQUESTS

ALL = ["tailrace", "kafka", "redis", "nats", "rabbitmq-quorum", "rabbitmq-stream"]
LEAST_RUNS, MOST_RUNS = SMALL_REQUESTS.least_runs, SMALL_REQUESTS.most_runs
has_settled = SMALL_REQUESTS.has_settled


def test_systems_take_turns_on_every_group_and_swap_who_goes_first() -> None:
    groups: list[Group[Target]] = [
        Group("a", (OneMessage(1),), KAFKA_PROTOCOL),
        Group("b", (OneMessage(5),), KAFKA_PROTOCOL),
    ]
    plan = make_plan(groups, 2, ALL)
    assert [(block.round, block.group, block.system) for block in plan] == [
        (1, "a", "tailrace"),
        (1, "a", "kafka"),
        (1, "b", "tailrace"),
        (1, "b", "kafka"),
        (2, "a", "kafka"),
        (2, "a", "tailrace"),
        (2, "b", "kafka"),
        (2, "b", "tailrace"),
    ]


def test_each_of_several_systems_goes_first_in_turn() -> None:
    assert [turns("abc", number) for number in (1, 2, 3, 4)] == [list(each) for each in ("abc", "bca", "cab", "abc")]
    assert turns([], 2) == []


def test_the_other_peers_run_their_four_workloads_in_as_many_rounds_as_asked() -> None:
    plan = make_plan([Group("peers", PEER_GROUP, OTHER_PEERS, rounds=1)], 3, ALL)
    assert [(block.round, block.system) for block in plan] == [(1, name) for name in ALL[2:]]
    assert [item.name for item in plan[0].workloads] == ["produce-1k", "consume-1k", "produce-100b", "consume-100b"]


def test_a_system_that_is_missing_is_not_planned() -> None:
    groups = [Group("a", PEER_GROUP, KAFKA_PROTOCOL), Group("peers", PEER_GROUP, OTHER_PEERS)]
    plan = make_plan(groups, 1, ["tailrace", "redis"])
    assert [block.system for block in plan] == ["tailrace", "redis"]


def test_what_a_step_took_replaces_the_guess() -> None:
    block: Block[Target] = Block(1, "kafka", "a", (OneMessage(1), Latency(1000)))
    estimate = Estimate()
    assert estimate.of_block(block) == START_SECONDS + OneMessage.expected_seconds + Latency.expected_seconds
    estimate.note("kafka", "start", 7.0)
    estimate.note("kafka", OneMessage(1).name, 2.0)
    estimate.note("tailrace", Latency(1000).name, 1.0)
    assert estimate.of_block(block) == 7.0 + 2.0 + Latency.expected_seconds


def test_no_two_workloads_share_a_name_and_a_quick_run_is_a_part_of_the_full_one() -> None:
    full = [item.name for group in FULL_GROUPS.values() for item in group]
    quick = [item.name for group in QUICK_GROUPS.values() for item in group]
    assert len(set(full)) == len(full)
    assert set(quick) <= set(full)
    assert {item.name for item in PEER_GROUP} <= set(quick)


def test_consuming_follows_producing_the_same_topic_in_the_same_group() -> None:
    for group in (*FULL_GROUPS.values(), *QUICK_GROUPS.values(), PEER_GROUP):
        names = [item.name for item in group]
        for position, name in enumerate(names):
            if name.startswith("consume-"):
                assert name.replace("consume-", "produce-") in names[:position]


def test_warming_up_goes_on_while_requests_get_cheaper() -> None:
    assert not has_settled([400, 300, 250, 200, 150, 120, 100])
    assert has_settled([400, 300, 200, 100, 60, 60, 58])


def test_warming_up_takes_some_runs_even_if_none_is_cheaper() -> None:
    assert not has_settled([])
    assert not has_settled([50] * (LEAST_RUNS - 1))
    assert has_settled([50] * LEAST_RUNS)


def test_one_noisy_run_does_not_end_the_warm_up() -> None:
    assert not has_settled([400, 300, 250, 200, 120, 150, 100])
    assert has_settled([400, 300, 250, 200, 100, 150, 99])


def test_warming_up_ends_even_if_requests_always_get_cheaper() -> None:
    assert has_settled([1000 * 0.9**run for run in range(MOST_RUNS)])
