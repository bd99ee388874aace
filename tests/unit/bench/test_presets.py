"""The presets: that their settings exist, and that the page tells what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from bench.suites import presets
from bench.workloads.presets import DEFAULT, PRESETS, WORKLOADS, Preset
from tailrace.broker.config.broker_config import BrokerConfig

by_name = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)


@by_name
def test_brokers_and_topics_take_the_settings(preset: Preset) -> None:
    config = BrokerConfig(preset.broker)
    assert config.warnings == ()
    config.validate_topic_overrides(preset.topic)


@by_name
def test_what_a_preset_sets_for_topics_is_what_it_sets_for_the_broker(preset: Preset) -> None:
    if preset.topic:
        assert BrokerConfig(preset.broker).topic_config({}) == BrokerConfig({}).topic_config(preset.topic)


@by_name
def test_clients_take_the_settings(preset: Preset) -> None:
    # librdkafka refuses what it does not know before it connects to anybody.
    Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **preset.producer})
    Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "x", "log_level": 0, **preset.consumer}).close()


def test_the_default_changes_nothing_of_the_broker() -> None:
    assert PRESETS[0].name == DEFAULT
    assert not PRESETS[0].broker


@pytest.fixture
def results() -> dict[str, Any]:
    factors = {DEFAULT: 1.0, "latency": 0.5, "throughput": 2.0, "durability": 4.0}
    return {
        "date": "2030-01-02",
        "minutes": 9.6,
        "rounds": 3,
        "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 8.0, "filesystem": "ext4"},
        "versions": {"tailrace": "0.1", "librdkafka": "2.0.2", "python": "3.11.7"},
        "samples": [
            {
                "preset": preset.name,
                "workload": workload.name,
                "round": turn,
                "metrics": dict.fromkeys(workload.figures, factors[preset.name] * (9 + turn)),
            }
            for preset in PRESETS
            for workload in WORKLOADS
            for turn in range(3)
        ],
    }


def test_a_row_has_the_median_the_spread_and_the_ratio_to_the_default(results: dict[str, Any]) -> None:
    row = presets.figure_rows(results)[0]
    assert row == [
        "end to end at 1,000 messages a second",
        "p50, ms",
        "lower",
        "10.0 ±10%",
        "5.00 ±10% (0.50x)",
        "20.0 ±10% (2.00x)",
        "40.0 ±10% (4.00x)",
    ]


def test_rounds_that_were_disturbed_are_pointed_out(results: dict[str, Any]) -> None:
    assert presets.noise_text(results) == ""
    assert "busy" not in presets.generated_part(results)
    results["samples"][0]["metrics"]["p50_ms"] *= 3
    assert "**1 of 36 figures differ by more than ±25% between the rounds**" in presets.generated_part(results)


def test_a_workload_that_failed_is_a_dash(results: dict[str, Any]) -> None:
    results["samples"] = [sample for sample in results["samples"] if sample["preset"] != "latency"]
    assert presets.figure_rows(results)[0][4] == "-"


def test_the_page_keeps_what_people_wrote_around_the_results(results: dict[str, Any], tmp_path: Path) -> None:
    page, source = tmp_path / "page.md", tmp_path / "presets.json"
    page.write_text(f"before\n{presets.PAGE.begin}\nold\n{presets.PAGE.end}\nafter\n")
    source.write_text(json.dumps(results))
    presets.PAGE.write(source, page)
    first = page.read_text()
    assert first.startswith("before\n")
    assert first.endswith("\nafter\n")
    assert "old" not in first
    assert "log.flush.interval.messages=1" in first
    presets.PAGE.write(source, page)
    assert page.read_text() == first


def test_the_page_is_what_the_last_results_and_the_present_settings_give() -> None:
    page = presets.PAGE.page.read_text(encoding="utf-8")
    assert page.count(presets.PAGE.begin) == page.count(presets.PAGE.end) == 1
    generated = presets.generated_part(json.loads(presets.PAGE.results.read_text(encoding="utf-8")))
    assert page.split(presets.PAGE.begin)[1].split(presets.PAGE.end)[0].strip() == generated, "run python -m bench docs"
