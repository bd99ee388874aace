"""How a suite is carried out: what becomes of failures, of systems that are missing and of blocks without time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.harness.failures import ClientFailedError, ServerFailedError
from bench.harness.page import PagePart
from bench.harness.run import execute
from bench.harness.suite import Block, Figures, Group, Metrics, OneSample, Say, Stage, Suite, Workload


@pytest.fixture(autouse=True)
def _disk_of_others_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured here, and writing back what others wrote on the machine may take seconds."""
    monkeypatch.setattr(os, "sync", lambda: None)


@dataclass
class Server:
    """What a block of these tests runs on."""

    system: str
    directory: Path
    is_alive: bool = True
    prepared: list[str] = field(default_factory=list)


@dataclass
class Servers(Stage[Server]):
    """Starts nothing, and notes what it is asked for."""

    absent: dict[str, str] = field(default_factory=dict)
    refuses: str = ""
    events: list[str] = field(default_factory=list)

    @contextmanager
    def shared(self, scratch: Path, say: Say) -> Iterator[None]:
        self.events.append("begin")
        yield
        self.events.append("end")

    @contextmanager
    def block(self, block: Block[Server], directory: Path, say: Say) -> Iterator[Server]:
        if block.system == self.refuses:
            raise ServerFailedError("no such port")
        (directory / "data").write_bytes(b"x")
        self.events.append(f"start {block.system} {block.round}")
        try:
            yield Server(block.system, directory)
        finally:
            self.events.append(f"stop {block.system} {block.round}")

    def warm_up(self, target: Server) -> Sequence[Figures]:
        return [Figures("start", {"first_ack_s": 1.0})]

    def check_alive(self, target: Server) -> None:
        if not target.is_alive:
            raise ServerFailedError("it ended with 3")

    def versions(self) -> dict[str, str]:
        return {"tailrace": "1.0"}

    def missing(self, systems: Sequence[str]) -> dict[str, str]:
        return self.absent


@dataclass(frozen=True)
class Speed(OneSample[Server]):
    """As fast as it is told to be for a system; fails where it is told nothing."""

    name = "speed"
    judged_by = ("requests_s",)
    speeds: dict[str, float] = field(default_factory=lambda: {"tailrace": 6.0, "kafka": 3.0})

    def prepare(self, target: Server) -> None:
        target.prepared.append(self.name)

    def measure(self, target: Server) -> Metrics:
        assert target.prepared == [self.name]
        if target.system not in self.speeds:
            raise ClientFailedError("exit code 1")
        return {"requests_s": self.speeds[target.system], "rss_mb": 5.0}


class Both(Workload[Server]):
    """Measures two systems in one go, with figures that nobody has named."""

    name = "both"

    def run(self, target: Server) -> Iterator[Figures]:
        for system, seconds in (("tailrace", 2.0), ("kafka", 4.0)):
            yield Figures("together", {"stop_s": seconds, "leaders": 7.0}, system)


class Deadly(OneSample[Server]):
    """The client fails because the server has ended."""

    name = "deadly"

    def measure(self, target: Server) -> Metrics:
        target.is_alive = False
        raise ClientFailedError("connection reset")


NAMES = ("tailrace", "kafka")


def _suite(tmp_path: Path, workloads: tuple[Workload[Server], ...], **more: Any) -> Suite[Server]:
    given: dict[str, Any] = {
        "name": "test",
        "stage": Servers(),
        "groups": [Group("group", workloads, NAMES)],
        "systems": NAMES,
        "rounds": 2,
        "scale": 1.0,
        "output": tmp_path / "out/results.json",
    }
    return Suite(**given | more)


def _run(suite: Suite[Server], tmp_path: Path) -> tuple[int, dict[str, Any]]:
    code = execute(suite, tmp_path / "scratch")
    # Whatever was written on the way is gone.
    assert list((tmp_path / "scratch").iterdir()) == []
    return code, json.loads(suite.output.read_text())


def test_systems_take_turns_between_one_begin_and_one_end(tmp_path: Path) -> None:
    stage = Servers()
    code, results = _run(_suite(tmp_path, (Speed(),), stage=stage), tmp_path)
    assert code == 0
    assert [event for event in stage.events if not event.startswith("stop")] == [
        *("begin", "start tailrace 1", "start kafka 1", "start kafka 2", "start tailrace 2", "end")
    ]
    assert [(each["system"], each["workload"], each["round"]) for each in results["samples"][:3]] == [
        ("tailrace", "start", 1),
        ("tailrace", "speed", 1),
        ("kafka", "start", 1),
    ]


def test_results_have_the_ratios_of_the_figures_by_which_a_workload_is_judged(tmp_path: Path) -> None:
    suite = _suite(tmp_path, (Speed(), Both()), judged_by={"start": ("first_ack_s",)}, settings={"acks": "1"})
    code, results = _run(suite, tmp_path)
    assert code == 0
    assert [(each["workload"], each["metric"], each["ratio"]) for each in results["ratios"]] == [
        ("start", "first_ack_s", 1.0),
        ("speed", "requests_s", 2.0),
        ("together", "stop_s", 0.5),
    ]
    assert results["settings"] == {"acks": "1", "rounds": 2, "scale": 1.0}
    assert results["machine"]["cores"] >= 1
    assert results["samples"][-1]["metrics"] == {"stop_s": 4.0, "leaders": 7.0}


def test_a_workload_that_fails_is_recorded_and_the_next_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, results = _run(_suite(tmp_path, (Speed({"tailrace": 1.0}), Both()), rounds=1), tmp_path)
    assert code == 1
    assert results["failures"] == [{"system": "kafka", "workload": "speed", "reason": "exit code 1", "round": 1}]
    assert sum(each["workload"] == "together" for each in results["samples"]) == 4
    said = capsys.readouterr()
    assert "round 1/1 kafka: speed FAILED: exit code 1" in said.out
    assert "1 workloads failed" in said.err


def test_a_server_that_has_ended_ends_its_block_and_not_the_run(tmp_path: Path) -> None:
    stage = Servers()
    code, results = _run(_suite(tmp_path, (Deadly(), Both()), rounds=1, stage=stage), tmp_path)
    assert code == 1
    assert [(each["system"], each["reason"]) for each in results["failures"]] == [
        ("tailrace", "it ended with 3"),
        ("kafka", "it ended with 3"),
    ]
    assert not any(each["workload"] == "together" for each in results["samples"])
    assert stage.events.count("stop tailrace 1") == 1


def test_a_server_that_does_not_start_is_a_failure_of_its_start(tmp_path: Path) -> None:
    code, results = _run(_suite(tmp_path, (Speed(),), rounds=1, stage=Servers(refuses="kafka")), tmp_path)
    assert code == 1
    assert results["failures"] == [{"system": "kafka", "workload": "start", "reason": "no such port", "round": 1}]


def test_a_system_that_is_missing_is_skipped_with_the_reason(tmp_path: Path) -> None:
    stage = Servers(absent={"kafka": "no jars"})
    code, results = _run(_suite(tmp_path, (Speed(),), stage=stage), tmp_path)
    assert code == 0
    assert results["skipped"] == [{"system": "kafka", "workload": "all", "reason": "no jars"}]
    assert {each["system"] for each in results["samples"]} == {"tailrace"}


def test_blocks_for_which_there_is_no_time_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The guess for a start alone is longer.
    code, results = _run(_suite(tmp_path, (Speed(),), rounds=1, limit_minutes=0.1), tmp_path)
    assert code == 0
    assert [each["workload"] for each in results["skipped"]] == ["group", "group"]
    assert results["samples"] == []


def test_samples_name_their_system_as_the_suite_calls_it(tmp_path: Path) -> None:
    _, results = _run(_suite(tmp_path, (Speed(),), subject="source", ours=None), tmp_path)
    assert results["samples"][0]["source"] == "tailrace"
    assert results["ratios"] == []


@pytest.mark.parametrize(("refusal", "is_written"), [(None, True), ("from a small run", False)])
def test_a_page_shows_a_run_without_failures_unless_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str | None, is_written: bool
) -> None:
    monkeypatch.setattr("bench.harness.page.ROOT", tmp_path)
    part = PagePart(tmp_path / "out/results.json", tmp_path / "page.md", lambda _: "the figures", lambda _: refusal)
    part.page.write_text(f"before\n{part.begin}\nold\n{part.end}\nafter\n")
    _run(_suite(tmp_path, (Speed(),), page=part), tmp_path)
    assert ("the figures" in part.page.read_text()) is is_written
    part.page.write_text(f"before\n{part.begin}\nold\n{part.end}\nafter\n")
    _run(_suite(tmp_path, (Deadly(),), page=part), tmp_path)
    assert "old" in part.page.read_text()
