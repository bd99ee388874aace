"""How settings are read out of properties and TOML files, and how the command line goes over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.config.broker_config import load_config
from tailrace.broker.config.file import parse_properties, parse_toml
from tailrace.errors import ConfigError

#: The keys that the server.properties of Kafka 4 sets.
STOCK_SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def pairs(text: str) -> list[tuple[str, object]]:
    return [(setting.name, setting.value) for setting in parse_properties(text, "f")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b")]),
        ("a = b ", [("a", "b ")]),
        ("a: b", [("a", "b")]),
        ("a b", [("a", "b")]),
        ("a", [("a", "")]),
        ("a==b", [("a", "=b")]),
        ("a = : b", [("a", ": b")]),
        ("\t a\f=\fb", [("a", "b")]),
        ("# a=b\n! c=d\n\n  # e=f\ng=h", [("g", "h")]),
        ("# a \\\nb=c", [("b", "c")]),
        ("a=b\\\n   c\\\n\td", [("a", "bcd")]),
        ("a=b\\\n# c", [("a", "b# c")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a=b\\", [("a", "b")]),
        ("a=b\\\n\nc=d", [("a", "b"), ("c", "d")]),
        ("a\\=b\\:c\\ d=e", [("a=b:c d", "e")]),
        ("a=\\t\\n\\r\\f\\q\\\\", [("a", "\t\n\r\fq\\")]),
        ("a=\\u00e9\\u20AC", [("a", "é€")]),
        ("a=\\ud83d\\ude00", [("a", "😀")]),
        ("a=b\r\nc=d\re=f", [("a", "b"), ("c", "d"), ("e", "f")]),
        ("a=b\x85c\u2028d", [("a", "b\x85c\u2028d")]),
        ("", []),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


@pytest.mark.parametrize("text", ["a=\\u00g1", "a=\\u12", "\\uzzzz=1", "a=\\ud83d"])
def test_a_malformed_escape_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\(conf:2\)"):
        parse_properties("\n" + text, "conf")


def test_a_setting_stands_where_its_first_line_stands() -> None:
    settings = parse_properties("# one\na=b\\\n  c\n\nd=e", "conf")
    assert [setting.origin for setting in settings] == ["conf:2", "conf:5"]


def escape(text: str) -> str:
    """Write text the way java.util.Properties.store does, with every character at risk escaped."""
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_any_names_and_values_survive_in_escaped_form(settings: dict[str, str]) -> None:
    text = "\n".join(f"{escape(name)}={escape(value)}" for name, value in settings.items())
    assert dict(pairs(text)) == settings


@given(st.text(alphabet="a=: \t\f\\\n\r#!u0", max_size=40))
def test_no_text_makes_the_parser_fail_in_any_way_but_a_config_error(text: str) -> None:
    lines = text.count("\n") + text.count("\r") + 1
    try:
        settings = pairs(text)
    except ConfigError:
        settings = []
    assert len(settings) <= lines
    assert all("\n" not in name and "\r" not in name for name, _ in settings)


def test_dots_tables_and_quotes_give_the_same_names_in_toml() -> None:
    dotted = "log.retention.hours = 3\nlog.segment.bytes = 2097152\n"
    tables = "[log]\nretention.hours = 3\n[log.segment]\nbytes = 2097152\n"
    quoted = '"log.retention.hours" = 3\n"log.segment.bytes" = 2097152\n'
    flat = [("log.retention.hours", 3), ("log.segment.bytes", 2097152)]
    for text in (dotted, tables, quoted):
        assert [(s.name, s.value) for s in parse_toml(text, "f.toml")] == flat


def test_toml_values_mean_what_the_same_text_would(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.toml"
    path.write_text(
        'log.dirs = ["/a", "/b"]\ndelete.topic.enable = false\nnum.partitions = 4\nmax.connections = 9\n'
        '"max.connections.per.ip" = 2\n'
    )
    config = load_config(str(path), {})
    assert config.get_list("log.dirs") == ("/a", "/b")
    assert config.get_bool("delete.topic.enable") is False
    assert config.get_int("max.connections.per.ip") == 2
    assert dict(config.raw) == {
        "log.dirs": "/a,/b",
        "delete.topic.enable": "false",
        "num.partitions": "4",
        "max.connections": "9",
        "max.connections.per.ip": "2",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("num.partitions = ", "is not TOML"),
        ("max.connections = 1\nmax.connections.per.ip = 2", "put the longer one in quotes"),
        ('num.partitions = 1\n"num.partitions" = 2', "sets num.partitions twice"),
        ("num.partitions = 1979-05-27", "Invalid value 1979-05-27 for configuration num.partitions"),
        ('log.dirs = [["a"]]', "Invalid value [['a']] for configuration log.dirs"),
        ("num.partitions = 0", "Value must be at least 1"),
        ("num.partition = 1", "did you mean num.partitions?"),
    ],
)
def test_a_bad_toml_file_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), {})
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_server_properties_that_kafka_ships_starts_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(STOCK_SERVER_PROPERTIES)
    config = load_config(str(path), {})
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(endpoint) for endpoint in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.get_int("node.id") == 1
    assert config.topic_config({}).retention_ms == 7 * 24 * 3_600_000
    assert f"process.roles has no effect in tailrace ({path}:2)" in config.warnings
    assert any("ignoring CONTROLLER" in warning for warning in config.warnings)


def test_errors_in_a_file_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# comment\nnum.partitions=0\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), {})
    assert str(caught.value) == (
        f"Invalid value 0 for configuration num.partitions: Value must be at least 1 ({path}:2)"
    )
    path.write_text("num.partitions=1\nnum.partition=2\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), {})
    assert str(caught.value) == (f"Unknown configuration num.partition ({path}:2): did you mean num.partitions?")
    path.write_text("\n\nbroker.id=x\n")
    with pytest.raises(ConfigError, match=r"configuration node\.id: Not a number.*:3\)"):
        load_config(str(path), {})
    path.write_text("listeners=PLAINTEXT://nowhere\n")
    with pytest.raises(ConfigError, match=r"is not NAME://host:port .*:1\)"):
        load_config(str(path), {})


def test_the_command_line_beats_the_file_under_whatever_name(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=1\nlog.dirs=/a\nlog.retention.ms=5\nnum.partitions=2\nlog.roll.hours=3\n")
    config = load_config(str(path), {"node.id": "9", "log.dir": "/b", "log.retention.hours": "1", "log.roll.ms": "8"})
    assert config.get_int("node.id") == 9
    assert config.get_list("log.dirs") == ("/b",)
    assert config.topic_config({}).retention_ms == 3_600_000
    assert config.topic_config({}).segment_ms == 8
    assert config.get_int("num.partitions") == 2


def test_a_bad_override_is_refused_as_standing_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"Value must be at least 1 \(command line\)$"):
        load_config(None, {"num.partitions": "0"})


def test_the_last_of_two_equal_keys_counts_in_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=1\nnum.partitions=2\n")
    assert load_config(str(path), {}).get_int("num.partitions") == 2


def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUM_PARTITIONS", "KAFKA_NUM_PARTITIONS", "TAILRACE_NUM_PARTITIONS", "num.partitions"):
        monkeypatch.setenv(name, "5")
    assert load_config(None, {}).get_int("num.partitions") == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the configuration file .*missing\.properties"):
        load_config(str(tmp_path / "missing.properties"), {})
    path = tmp_path / "latin.properties"
    path.write_bytes(b"broker.rack=caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.properties is not UTF-8"):
        load_config(str(path), {})


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"\xef\xbb\xbfnum.partitions=2\n")
    assert load_config(str(path), {}).get_int("num.partitions") == 2
