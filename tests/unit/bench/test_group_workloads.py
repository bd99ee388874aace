"""The workloads of consumer groups: which there are, how large they are, and how a client that holds is measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from bench.clients import programs
from bench.clients.programs import measured_from_ready, run_client
from bench.clients.server import Handle
from bench.harness import ratios
from bench.harness.failures import ClientFailedError
from bench.harness.report import TABLE_METRICS
from bench.suites.peers import FULL_GROUPS, NAMED_GROUPS, chosen
from bench.systems.tailrace import Tailrace
from bench.workloads.groups import GroupChange, GroupKill, GroupRestart, MemberRequests, newest_librdkafka
from bench.workloads.single import Bulk, Consume
from bench.workloads.target import Target

WORKLOADS = [item for group in NAMED_GROUPS.values() for item in group]


def test_every_workload_has_a_name_of_its_own_and_figures_with_a_better_side_that_are_shown() -> None:
    names = [item.name for item in WORKLOADS]
    others = {item.name for group in FULL_GROUPS.values() for item in group}
    assert len(set(names)) == len(names)
    assert not others & set(names)
    assert not set(NAMED_GROUPS) & set(FULL_GROUPS)
    for item in WORKLOADS:
        for metric in item.judged_by:
            assert ratios.direction(metric) in ("higher", "lower")
            assert metric in TABLE_METRICS


def test_the_three_protocols_are_compared_and_both_kinds_of_request_in_both_sizes() -> None:
    names = {item.name for item in WORKLOADS}
    assert {f"group-join-{protocol}" for protocol in ("eager", "cooperative", "consumer")} <= names
    assert {f"group-restart-{protocol}" for protocol in ("eager", "cooperative", "consumer")} <= names
    assert {f"{kind}s-{size}" for kind in ("heartbeat", "commit") for size in ("1000-groups", "500-members")} <= names


def test_ten_members_are_restarted_and_fewer_only_in_a_small_run() -> None:
    assert GroupRestart("eager").sizes(1.0) == (10, 20)
    assert GroupRestart("eager").sizes(3.0) == (10, 20)
    assert GroupRestart("eager").sizes(0.05) == (3, 6)


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0])
def test_no_member_is_without_a_partition_even_when_one_more_joins(scale: float) -> None:
    for item in WORKLOADS:
        if isinstance(item, GroupChange):
            members, partitions = item.sizes(scale)
            assert partitions > members >= 2


def test_names_say_what_is_measured() -> None:
    assert GroupKill("cooperative").name == "group-kill-cooperative"
    assert MemberRequests("commit", groups=1000).name == "commits-1000-groups"
    assert MemberRequests("heartbeat", members=500).name == "heartbeats-500-members"


def test_the_library_of_the_python_client_is_found() -> None:
    assert newest_librdkafka().is_file()


class _Server:
    """Costs a second of CPU whenever it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def pids(self) -> list[int]:
        return []

    def cpu_seconds(self) -> float:
        self.asked += 1
        return float(self.asked)

    def rss_mb(self) -> float:
        return 5.0


def _client(program: str) -> list[str]:
    return [sys.executable, "-c", "import sys\n" + program]


def test_a_client_that_holds_is_measured_between_its_two_waits() -> None:
    server = _Server()
    program = (
        "print('ready', flush=True)\n"
        "word = sys.stdin.readline()\n"
        'print(\'{"requests": 4, "word": %d}\' % len(word), flush=True)\n'
        "sys.exit(0 if sys.stdin.read() == '' else 1)\n"
    )
    metrics = measured_from_ready(server, _client(program))
    assert metrics["requests"] == 4
    assert metrics["word"] == len("begin\n")
    assert (metrics["server_cpu_s"], metrics["cpu_us_per_request"], metrics["rss_mb"]) == (1.0, 250_000.0, 5.0)
    assert server.asked == 2


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("sys.exit('no broker')", "not ready, exit code 1: no broker"),
        ("print('ready', flush=True); sys.stdin.readline(); sys.exit('error 25')", "exit code 1: error 25"),
        ("print('ready', flush=True); sys.stdin.readline(); print('{}', flush=True); sys.exit('stays')", "stays"),
        ("print('ready', flush=True); sys.stdin.readline(); print('many')", "not JSON"),
    ],
)
def test_a_client_that_fails_before_between_or_after_is_no_result(program: str, reason: str) -> None:
    with pytest.raises(ClientFailedError, match=reason):
        measured_from_ready(_Server(), _client(program))


def test_a_client_without_an_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "CLIENT_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(ClientFailedError, match="did not end within"):
        run_client(_client("import time; time.sleep(600)"))


def test_what_failed_to_be_produced_cannot_be_consumed_and_that_is_no_end_of_the_run(tmp_path: Path) -> None:
    target = Target(Tailrace(), Handle("127.0.0.1", 1, 1), tmp_path, 1.0, print)
    with pytest.raises(ClientFailedError, match="nothing was produced to 1k"):
        Consume(Bulk(1000)).measure(target)


def test_a_client_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "CLIENT_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(ClientFailedError, match="not ready, exit code -9"):
        measured_from_ready(_Server(), _client("sys.stdin.read()"))


def test_workloads_are_chosen_by_name_and_a_name_that_is_not_there_is_told() -> None:
    parser = argparse.ArgumentParser(prog="bench", exit_on_error=False)
    left = chosen(NAMED_GROUPS, ["commits-500-members", "heartbeats-1000-groups"], parser)
    assert [item.name for item in left["groups"]] == ["heartbeats-1000-groups", "commits-500-members"]
    assert chosen({**FULL_GROUPS, **NAMED_GROUPS}, ["commits-500-members"], parser).keys() == {"groups"}
    with pytest.raises(SystemExit):
        chosen(NAMED_GROUPS, ["commits-of-nobody"], parser)
