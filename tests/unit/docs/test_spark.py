"""The page on Spark names the existing options with their defaults, and the messages that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.pipeline.sink.settings import write_settings
from tailrace.pipeline.source import options
from tailrace.pipeline.source.options import ReadOptions, parse_read_options
from tailrace.pipeline.source.schema import COLUMNS, spark_schema
from tailrace.records.compression import Compression

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = PAGE.split(f"\n### {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def defaults(heading: str) -> dict[str, str]:
    """What the page says of each option's default, empty for none."""
    found = {}
    for names, default, *_ in rows(heading):
        for name in re.findall(r"`([^`]+)`", names):
            found[name] = default
    return found


def read_options(*, streaming: bool) -> ReadOptions:
    return parse_read_options({**SERVERS, "subscribe": "orders"}, streaming=streaming)


def test_every_option_for_reading_is_on_the_page_and_no_other() -> None:
    assert set(defaults("Options for reading")) == {*options._OPTIONS, *SERVERS}


def test_options_for_reading_have_the_defaults_that_are_named() -> None:
    named = defaults("Options for reading")
    assert {name: default for name, default in named.items() if default} == {
        "startingOffsets": "`earliest`; in a stream `latest`",
        "endingOffsets": "`latest`",
        "startingOffsetsByTimestampStrategy": "`error`",
        "includeHeaders": "`false`",
        "maxTriggerDelay": "`15m`",
        "failOnCorruptBatch": "`true`",
        "timeIndex": "`false`",
        "failOnDataLoss": "`true`",
        "kafkaConsumer.pollTimeoutMs": "`120000`",
        "tailrace.archive": "`auto`",
    }
    batch, stream = read_options(streaming=False), read_options(streaming=True)
    spelled = {
        name: parse_read_options({**SERVERS, "subscribe": "orders", **given}, streaming=name == "stream")
        for name, given in {
            "batch": {
                "startingOffsets": "earliest",
                "endingOffsets": "latest",
                "startingOffsetsByTimestampStrategy": "error",
                "includeHeaders": "false",
                "failOnCorruptBatch": "true",
                "failOnDataLoss": "true",
                "kafkaConsumer.pollTimeoutMs": "120000",
            },
            "stream": {"startingOffsets": "latest", "maxTriggerDelay": "15m"},
        }.items()
    }
    assert spelled == {"batch": batch, "stream": stream}


def test_options_for_writing_are_taken_with_the_defaults_that_are_named() -> None:
    named = {name: default.strip("`") for name, default in defaults("Options for writing").items() if default}
    assert write_settings({**SERVERS, "topic": "orders", **named}) == write_settings({**SERVERS, "topic": "orders"})
    for name in defaults("Options for writing"):
        value = {"kafka.bootstrap.servers": "127.0.0.1:9092", "includeHeaders": "true", "kafka.acks": "all"}.get(name)
        write_settings({**SERVERS, name: value or ("zstd" if name.endswith("type") else "200000")})
    for codec in Compression:
        assert f"`{codec.name.lower()}`" in PAGE


def test_the_columns_are_those_of_a_topic() -> None:
    assert [name.strip("`") for name, *_ in rows("Columns")] == list(COLUMNS)
    for name, kind, *_ in rows("Columns")[:-1]:
        (field,) = spark_schema([name.strip("`")]).fields
        assert kind == {"bigint": "long"}.get(field.dataType.simpleString(), field.dataType.simpleString())


@pytest.mark.parametrize("name", re.findall(r"\]\(\.\./(examples/[\w.]+)\)", PAGE))
def test_every_example_that_is_named_exists(name: str) -> None:
    assert (ROOT / name).is_file()


def test_every_message_that_is_explained_is_in_the_code() -> None:
    folders = [ROOT / "src/tailrace" / name for name in ("pipeline", "protocol_client")]
    source = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    section = PAGE.split("\n## When something is wrong\n", 1)[1].split("\n## ", 1)[0]
    messages = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(messages) >= 6
    sparks_own = ("DATA_SOURCE_NOT_FOUND", "Python worker failed")
    for message in messages:
        if not message.startswith(sparks_own):
            for part in re.split(r"'?…'?", message):
                assert part.strip() in source, f"no message has: {part}"
