"""The configuration page says what the tables say."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.broker.config.broker_config import BROKER_KEYS, TOPIC_KEYS, BrokerConfig
from tailrace.broker.config.docs import main, render
from tailrace.broker.config.file import parse_properties, parse_toml

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_what_the_generator_writes(tmp_path: Path) -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run python -m tailrace.broker.config.docs to write docs/configuration.md again"
    )
    assert main([str(tmp_path / "docs" / "page.md")]) == 0
    assert (tmp_path / "docs" / "page.md").read_text(encoding="utf-8") == render()


def test_every_key_has_one_row() -> None:
    rows = re.findall(r"^\| `([a-z0-9.]+)`", render(), re.MULTILINE)
    assert [name for name in rows if "." in name or name == "listeners"] == [*BROKER_KEYS, *TOPIC_KEYS]


def test_the_examples_on_the_page_are_valid_configurations() -> None:
    page = render()
    properties = re.findall(r"```properties\n(.*?)```", page, re.DOTALL)
    toml = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(properties) == len(toml) == 1
    for settings in (parse_properties(properties[0], "example"), parse_toml(toml[0], "example.toml")):
        config = BrokerConfig({setting.name: setting.value for setting in settings})
        assert config.topic_config({}).retention_ms == 72 * 3_600_000
        assert config.warnings == ()
