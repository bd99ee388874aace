"""Warming a broker up before anything is measured, for as long as it still gets faster.

The same for every system that speaks Kafka, and not smaller in a smaller run: a Java virtual machine compiles what it
has seen often, and costs two to three times as much until then. A short fixed warm-up would flatter its rivals.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.clients.programs import measured, rdbench, run_client
from bench.systems.system import Handle, System

#: On a busy machine the first runs may show no progress although the compiler has only begun.
LEAST_RUNS = 7
MOST_RUNS = 12
#: A run that is not this much cheaper than the best before it shows no progress; noise alone may hide it once.
PROGRESS = 0.95
RUNS_WITHOUT_PROGRESS = 2


def has_settled(costs: Sequence[float]) -> bool:
    """Whether the last runs were no cheaper than the best one before them."""
    if len(costs) >= MOST_RUNS:
        return True
    if len(costs) < LEAST_RUNS:
        return False
    best = min(costs[:-RUNS_WITHOUT_PROGRESS])
    return min(costs[-RUNS_WITHOUT_PROGRESS:]) > PROGRESS * best


def warm_up(system: System, handle: Handle) -> list[float]:
    """Some of everything once, then small requests until they get no cheaper; their CPU cost in each run, in µs."""
    bulk = {"partitions": 6, "count": 300_000, "size": 1000, "acks": 1, "batch_bytes": 16384, "seconds": 5}
    run_client(rdbench("produce", handle, "warm-up", **bulk))
    run_client(rdbench("consume", handle, "warm-up", partitions=6, count=100_000, from_beginning=True, seconds=5))
    run_client(rdbench("latency", handle, "warm-up-latency", rate=2000, seconds=1, size=100, warmup_seconds=1))
    one = {"partitions": 1, "count": 40_000, "size": 100, "one_message": True, "in_flight": 5}
    costs: list[float] = []
    while not has_settled(costs):
        metrics = measured(system, rdbench("produce", handle, "warm-up-one", **one, acks=1, seconds=5))
        costs.append(metrics["cpu_us_per_request"])
    return costs
