"""The messages that docs/operations.md explains are those that the code writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.storage.directory_identity import CLEAN_SHUTDOWN, META_PROPERTIES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
GAP = "…"


def texts_in_source() -> Iterator[str]:
    """Every string of the package, with a gap for each part that is filled in at run time."""
    for path in (ROOT / "src" / "tailrace").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sd]", GAP, node.value)


def messages_on_page() -> list[str]:
    """The first column of the tables of messages."""
    part = PAGE.split("## Bad days")[1].split("### What clients say")[0]
    return re.findall(r"^\| `(.+?)`", part, re.MULTILINE)


SOURCE = list(texts_in_source())


def is_written(message: str) -> bool:
    """Whether one string of the source has all words of the message between its gaps, in order."""
    pattern = re.compile(".*".join(re.escape(piece.strip()) for piece in message.split(GAP)), re.DOTALL)
    return any(pattern.search(text) for text in SOURCE)


@pytest.mark.parametrize("message", messages_on_page())
def test_a_message_on_the_page_is_one_of_the_code(message: str) -> None:
    assert is_written(message)


def test_the_page_explains_messages_and_a_made_up_one_is_noticed() -> None:
    assert len(messages_on_page()) > 15
    assert not is_written("the broker … is tired")


def test_every_file_of_a_data_directory_is_explained() -> None:
    from tailrace.storage import checkpoints, segment

    names = [META_PROPERTIES, CLEAN_SHUTDOWN]
    names += [value for name, value in vars(checkpoints).items() if name.isupper() and isinstance(value, str)]
    names += [value for name, value in vars(segment).items() if name.endswith("_SUFFIX")]
    for name in names:
        assert name in PAGE, f"{name} is not on the page"


def test_the_metrics_to_watch_are_metrics() -> None:
    from tailrace.broker.monitoring.metrics import METRICS

    part = PAGE.split("## What to watch")[1].split("## Bad days")[0]
    named = re.findall(r"`((?:kafka|tailrace|process)_[a-z_]+)`", part)
    assert len(named) > 8
    assert sorted(set(named) - {metric.description.name for metric in METRICS}) == []
