"""The cluster benchmark's measurements, small, on real processes: they must see what happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.systems.tailrace_cluster import TailraceCluster
from bench.workloads.cluster import Topics, give_up_leaders, lose_controller, lose_leaders


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TailraceCluster]:
    cluster = TailraceCluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def test_leaders_that_die_stop_and_rule_are_measured_from_outside(cluster: TailraceCluster) -> None:
    topics = Topics(cluster, 100, print)
    figures = list(topics.grow_to(100))
    controller = cluster.controller()
    victim = next(number for number in cluster.servers if number != controller)
    figures += lose_leaders(cluster, topics, victim)
    figures += give_up_leaders(cluster, topics, victim)
    figures += lose_controller(cluster, topics)
    found = {each.workload: each.metrics for each in figures}
    print(found)
    assert list(found) == [
        "create-100-partitions",
        "lose-33-leaders",
        "back-with-100-partitions",
        "give-back-33-leaders",
        "stop-with-33-leaders",
        "controller-killed-100-partitions",
    ]
    killed = found["lose-33-leaders"]
    assert killed["leaders"] in (33, 34)
    # The session has to end first, by its own time.
    assert 0 < killed["moved_s"] < killed["outage_s"]
    assert killed["outage_s"] > 2
    # A server that stops hands over, so nobody waits for its session to end.
    assert found["stop-with-33-leaders"]["moved_s"] < killed["outage_s"]
    assert found["stop-with-33-leaders"]["leaders"] in (33, 34)
    last = found["controller-killed-100-partitions"]
    assert 0 <= last["load_s"] < last["outage_s"]
    assert cluster.controller() != controller
