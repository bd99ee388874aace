"""The start of a fresh server before anything is measured: its first record, and some of each load until it is warm.

The same for every system that speaks Kafka, and not smaller in a smaller run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.clients.programs import measured, rawbench, rdbench, run_client
from bench.harness.failures import ClientFailedError
from bench.harness.suite import Figures
from bench.harness.warm_up import WarmUp
from bench.workloads.target import Target

#: Figures measured at each start of a server, not by a workload.
START = "start"
START_FIGURES = ("first_ack_s", "rss_mb")
FIRST_ACK_TIMEOUT_SECONDS = 60
#: On a busy machine, the first runs may show no progress although the compiler has only started.
SMALL_REQUESTS = WarmUp(least_runs=7, most_runs=12)


def first_ack_and_warm_up(target: Target) -> Iterator[Figures]:
    """Measure how soon a server is usable, and bring it to its usual speed."""
    system = target.system
    seconds = first_ack_seconds(target)
    metrics = {"first_ack_s": seconds, "rss_mb": system.rss_mb(), "pss_mb": system.pss_mb()}
    target.say(f"first acknowledged record after {seconds:.2f} s, RSS {metrics['rss_mb']:.0f} MB; warm-up")
    costs = warm_up(target)
    target.say(f"warm after {len(costs)} runs: {costs[0]:.0f} to {costs[-1]:.0f} CPU µs a request")
    warm = {"warm_up_runs": len(costs), "warm_up_first_us": costs[0], "warm_up_last_us": costs[-1]}
    yield Figures(START, metrics | warm)


def first_ack_seconds(target: Target) -> float:
    """Measure from the start of the process to its first acknowledged record, which is requested repeatedly."""
    server = target.system.server
    target.system.wait_ready()
    options = {"partitions": 1, "connections": 1, "batch_bytes": 200, "records_per_batch": 1}
    command = rawbench("produce", target.handle, "first", **options, in_flight=1, requests=1)
    deadline = server.started_at + FIRST_ACK_TIMEOUT_SECONDS
    while True:
        try:
            run_client(command)
            return time.monotonic() - server.started_at
        except ClientFailedError:
            server.check_alive()
            if time.monotonic() > deadline:
                raise


def warm_up(target: Target) -> list[float]:
    """Run each load once, then small requests until they get no cheaper; return the CPU cost of each run in µs."""
    handle = target.handle
    bulk = {"partitions": 6, "count": 300_000, "size": 1000, "acks": 1, "batch_bytes": 16384, "seconds": 5}
    run_client(rdbench("produce", handle, "warm-up", **bulk))
    run_client(rdbench("consume", handle, "warm-up", partitions=6, count=100_000, from_beginning=True, seconds=5))
    run_client(rdbench("latency", handle, "warm-up-latency", rate=2000, seconds=1, size=100, warmup_seconds=1))
    one = {"partitions": 1, "count": 40_000, "size": 100, "one_message": True, "in_flight": 5}
    costs: list[float] = []
    while not SMALL_REQUESTS.has_settled(costs):
        metrics = measured(target.system, rdbench("produce", handle, "warm-up-one", **one, acks=1, seconds=5))
        costs.append(metrics["cpu_us_per_request"])
    return costs
