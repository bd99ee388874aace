"""Three brokers beside three nodes of Apache Kafka, in one run: `make bench-cluster`, or `python -m bench.cluster`.

Measures what replicas cost (throughput and latency with acks=all, three copies), how long a partition cannot be written
to after its leader is killed, and how brokers and their controller cope with thousands of partitions. Owns the order of
the run, its progress lines and its results, bench/results/cluster.json. A part that fails is recorded and the run goes
on; whatever was started is stopped in every case.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import KafkaException

from bench import report
from bench.clients.programs import ClientFailedError
from bench.harness import limits, machine
from bench.harness.paths import ROOT
from bench.harness.processes import ServerFailedError
from bench.harness.ratios import HIGHER_IS_BETTER, LOWER_IS_BETTER, Sample, compute_ratios
from bench.systems.cluster import BROKERS, SESSION_MS, Cluster
from bench.systems.kafka_cluster import KafkaCluster
from bench.systems.system import command_output
from bench.systems.tailrace_cluster import TailraceCluster
from bench.workloads.cluster import (
    CONFIGS,
    PARTITIONS,
    Figures,
    failovers,
    latency,
    many_partitions,
    throughput,
    warm_up,
)

SYSTEMS: Mapping[str, type[Cluster]] = {"tailrace": TailraceCluster, "kafka": KafkaCluster}
#: Those of a cluster that was just started; "partitions" is run once, in a cluster of its own.
LOAD_PARTS = ("throughput", "latency", "kills")
PARTS = (*LOAD_PARTS, "partitions")

Expected = (ClientFailedError, ServerFailedError, KafkaException, OSError, subprocess.SubprocessError)


class Run:
    """The state of one run: its samples, its failures, its clock."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rounds: int = options.rounds
        self.scale: float = options.scale
        self.kills: int = options.kills
        self.per_topic: int = options.partitions_per_topic
        self.parts: Sequence[str] = options.parts
        self.systems: Sequence[str] = options.systems
        self.samples: list[Sample] = []
        self.failures: list[dict[str, Any]] = []
        self._started = time.monotonic()
        self._round = 1

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._started) / 60

    def run(self, scratch: Path) -> None:
        """All rounds; who goes first alternates."""
        if self.scale >= 1:
            limits.touch_memory()
        for number in range(1, self.rounds + 1):
            self._round = number
            for name in self.systems if self._round % 2 else reversed(self.systems):
                if any(part in self.parts for part in LOAD_PARTS):
                    self._with_cluster(name, scratch, "load")
                if "partitions" in self.parts and self._round == 1:
                    self._with_cluster(name, scratch, "partitions")

    def _with_cluster(self, name: str, scratch: Path, part: str) -> None:
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=scratch))
        cluster = SYSTEMS[name](directory)
        try:
            self._say(name, "start")
            cluster.start()
            for workload, metrics in self._load(cluster) if part == "load" else self._partitions(cluster):
                self.samples.append(Sample(name, workload, self._round, metrics))
                self._say(
                    name, f"{workload}: {', '.join(f'{key} {report.number(metrics[key])}' for key in shown(metrics))}"
                )
                os.sync()
            cluster.check_alive()
        except Expected as error:
            reason = str(error) or type(error).__name__
            self.failures.append({"system": name, "workload": part, "reason": reason, "round": self._round})
            self._say(name, f"FAILED: {reason}")
        finally:
            cluster.end()
            shutil.rmtree(directory)
            # The next system must not pay for pages that this one left to be written.
            os.sync()

    def _load(self, cluster: Cluster) -> Iterator[Figures]:
        if "throughput" in self.parts or "latency" in self.parts:
            self._say(cluster.name, "warm-up")
            warm_up(cluster, self.scale)
        if "throughput" in self.parts:
            yield from throughput(cluster, self.scale)
        if "latency" in self.parts:
            yield from latency(cluster, self.scale)
        if "kills" in self.parts:
            yield from failovers(cluster, self.kills)

    def _partitions(self, cluster: Cluster) -> Iterator[Figures]:
        return many_partitions(
            cluster,
            self.scale,
            self.per_topic,
            max(30 * self.scale, 5),
            lambda text: self._say(cluster.name, text),
        )

    def _say(self, system: str, text: str) -> None:
        print(f"[{self.minutes:5.1f} min] round {self._round}/{self.rounds} {system}: {text}", flush=True)

    def results(self, scratch: Path) -> dict[str, Any]:
        """Everything that is written to the results file."""
        judged_by: dict[str, dict[str, None]] = {}
        for sample in self.samples:
            judged_by.setdefault(sample.workload, {}).update(dict.fromkeys(shown(sample.metrics)))
        versions, _ = machine.describe_versions(list(self.systems))
        versions["etcd"] = command_output(["etcd", "--version"]).split()[-1]
        return {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": self.minutes,
            "machine": machine.describe_machine(scratch),
            "versions": versions,
            "settings": {
                "brokers": BROKERS,
                "replicas": BROKERS,
                "partitions": PARTITIONS,
                **CONFIGS,
                "broker.session.timeout.ms": SESSION_MS,
                "rounds": self.rounds,
                "scale": self.scale,
                "kills": self.kills,
                "partitions_per_topic": self.per_topic,
                "parts": list(self.parts),
            },
            "ratios": compute_ratios(self.samples, {name: list(metrics) for name, metrics in judged_by.items()}),
            "shares": [],
            "skipped": [],
            "failures": self.failures,
            "samples": [
                {"system": each.system, "workload": each.workload, "round": each.round, "metrics": dict(each.metrics)}
                for each in self.samples
            ],
        }


def shown(metrics: Mapping[str, float]) -> list[str]:
    """The figures that have a better side, and so are compared."""
    return [name for name in metrics if name in HIGHER_IS_BETTER or name in LOWER_IS_BETTER]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.cluster", description="three brokers beside three nodes of Kafka")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of messages and partitions")
    parser.add_argument("--kills", type=int, default=5, help="leaders killed in each round")
    parser.add_argument("--partitions-per-topic", type=int, default=100, help="where there are many partitions")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help="only these")
    parser.add_argument("--output", type=Path, default=report.CLUSTER_RESULTS)
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench-data", help="where all data is kept")
    options = parser.parse_args()
    # A stopped benchmark must stop its servers too.
    signal.signal(signal.SIGTERM, _interrupt)
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="cluster-", dir=options.scratch))
    run = Run(options)
    try:
        run.run(scratch)
        results = run.results(scratch)
    finally:
        shutil.rmtree(scratch)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + report.cluster_summary(results))
    print(f"\n{run.minutes:.1f} minutes; wrote {options.output}")
    if run.failures:
        print(f"{len(run.failures)} parts failed", file=sys.stderr)
    elif options.output == report.CLUSTER_RESULTS and report.is_whole_cluster_run(results):
        report.write_cluster_docs()
    return int(bool(run.failures))


if __name__ == "__main__":
    sys.exit(main())
