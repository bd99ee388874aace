"""The page of metrics says what the table says."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.broker.monitoring.docs import main, render
from tailrace.broker.monitoring.metrics import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_what_the_generator_writes(tmp_path: Path) -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run python -m tailrace.broker.monitoring.docs to write docs/metrics.md again"
    )
    main([str(tmp_path / "docs" / "page.md")])
    assert (tmp_path / "docs" / "page.md").read_text(encoding="utf-8") == render()


def test_every_metric_has_one_row_and_every_metric_that_is_mentioned_exists() -> None:
    page = render()
    names = [metric.description.name for metric in METRICS]
    assert re.findall(r"^\| `([a-z_]+)` \| (?:counter|gauge|histogram) \|", page, re.MULTILINE) == names
    assert len(set(names)) == len(names)
    for mentioned in re.findall(r"\b((?:kafka|tailrace|process|python)_[a-z_]+)\b", page):
        assert mentioned.removesuffix("_bucket") in names


def test_counters_are_named_as_counters_and_nothing_else_is() -> None:
    for metric in METRICS:
        about = metric.description
        assert about.name.endswith("_total") == (about.kind.value == "counter"), about.name
        assert about.meaning.endswith(".")
