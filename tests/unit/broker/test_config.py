"""What a broker configuration accepts, what it refuses and in which words, and what topics get from it."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys

import pytest

from tailrace.broker.config.broker_config import BROKER_KEYS, TOPIC_KEYS, BrokerConfig, ConfigSource, ConfigType
from tailrace.broker.config.keys import ALIASES, NO_EFFECT, NO_EFFECT_PREFIXES
from tailrace.broker.config.types import ConfigKey, value_text
from tailrace.errors import ConfigError
from tailrace.records.compression import Compression
from tailrace.storage.log_config import LogConfig


def refusal(settings: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(settings)
    return str(caught.value)


@pytest.mark.parametrize("key", [*BROKER_KEYS.values(), *TOPIC_KEYS.values()], ids=lambda key: key.name)
def test_every_default_is_a_value_its_own_key_accepts(key: ConfigKey) -> None:
    text = value_text(key.default)
    if text is not None:
        assert key.parse(text) == key.default


def test_no_key_is_both_honoured_and_without_effect() -> None:
    names = [*BROKER_KEYS, *ALIASES]
    assert [name for name in names if name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES)] == []


def test_types_are_numbered_as_describe_configs_numbers_them() -> None:
    assert [(kind.name, kind.value) for kind in ConfigType] == [
        ("BOOLEAN", 1),
        ("STRING", 2),
        ("INT", 3),
        ("SHORT", 4),
        ("LONG", 5),
        ("DOUBLE", 6),
        ("LIST", 7),
        ("CLASS", 8),
        ("PASSWORD", 9),
    ]


def test_an_empty_configuration_is_a_loopback_broker_that_keeps_two_weeks() -> None:
    config = BrokerConfig()
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.advertised_listeners == config.listeners
    assert config.get_list("log.dirs") == ("data",)
    assert config.topic_config({}).retention_ms == 14 * 24 * 3_600_000
    assert config.warnings == ()
    assert dict(config.raw) == {}


def test_the_defaults_of_a_topic_are_those_a_log_has_by_itself() -> None:
    assert BrokerConfig().topic_config({}) == LogConfig()


def test_values_are_read_by_type_and_know_whether_they_were_given() -> None:
    config = BrokerConfig({"num.partitions": " 3 ", "delete.topic.enable": "FALSE", "broker.rack": "cellar"})
    assert config.get_int("num.partitions") == 3
    assert config.get_float("num.partitions") == 3.0
    assert config.get_bool("delete.topic.enable") is False
    assert config.get_str("broker.rack") == "cellar"
    assert config.get_optional_str("cluster.id") is None
    assert config.source("num.partitions") is ConfigSource.STATIC_BROKER
    assert config.source("message.max.bytes") is ConfigSource.DEFAULT
    assert config.text("delete.topic.enable") == "false"
    assert config.text("log.roll.ms") is None
    assert config.text("listeners") == "PLAINTEXT://127.0.0.1:9092"
    assert dict(config.raw) == {
        "num.partitions": " 3 ",
        "delete.topic.enable": "FALSE",
        "broker.rack": "cellar",
    }


def test_reading_a_key_as_another_type_fails_loudly() -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError):
        config.get_int("delete.topic.enable")
    with pytest.raises(ConfigError):
        config.get_int("log.retention.ms")
    with pytest.raises(ConfigError):
        config.get_str("broker.rack")
    with pytest.raises(KeyError):
        config.get_int("no.such.key")


def test_a_configuration_cannot_be_changed() -> None:
    config = BrokerConfig({"num.partitions": "3"})
    with pytest.raises(TypeError):
        config.raw["num.partitions"] = "4"  # type: ignore[index]
    with pytest.raises(AttributeError):
        config.warnings = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("num.partitions", "0", "Value must be at least 1"),
        ("num.partitions", "three", "Not a number of type INT"),
        ("num.partitions", "1_000", "Not a number of type INT"),
        ("num.partitions", "2147483648", "Not a number of type INT"),
        ("num.partitions", "9" * 5000, "Not a number of type INT"),
        ("log.retention.bytes", "9223372036854775808", "Not a number of type LONG"),
        ("delete.topic.enable", "yes", "Expected value to be either true or false"),
        ("log.retention.ms", "0", "Value must be at least 1, or -1"),
        ("log.segment.bytes", "1048575", "Value must be at least 1048576"),
        ("log.message.timestamp.type", "Now", "String must be one of: CreateTime, LogAppendTime"),
        ("log.cleanup.policy", "shrink", "String must be one of: compact, delete"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "Value must be no more than 1"),
        ("log.cleaner.min.cleanable.ratio", "half", "Not a number of type DOUBLE"),
        ("log.cleaner.min.cleanable.ratio", "nan", "Not a number of type DOUBLE"),
        ("log.cleaner.max.compaction.lag.ms", "0", "Value must be at least 1"),
        ("log.cleaner.dedupe.buffer.size", "1000", "Value must be at least 1048576"),
        ("tailrace.scrub.interval.hours", "0", "Value must be at least 1, or -1"),
        (
            "compression.type",
            "brotli",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("log.cleanup.policy", "", "The list must not be empty; allowed items: compact, delete"),
        ("log.dirs", "a,,b", "The list must not be empty or contain an empty item"),
        ("log.dirs", "a, a", "a appears twice in the list"),
    ],
)
def test_a_bad_value_is_refused_in_kafkas_words(name: str, value: str, why: str) -> None:
    assert refusal({name: value}) == f"Invalid value {value} for configuration {name}: {why}"


def test_a_sensitive_value_is_not_repeated_in_its_refusal() -> None:
    key = ConfigKey(
        name="secret.size",
        type=ConfigType.INT,
        default=None,
        documentation="",
        importance="low",
        is_sensitive=True,
    )
    with pytest.raises(ConfigError) as caught:
        key.parse("hunter2")
    assert "hunter2" not in str(caught.value)


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    assert (
        refusal({"log.retention.hour": "3"})
        == "Unknown configuration log.retention.hour: did you mean log.retention.hours?"
    )


@pytest.mark.parametrize("name", ["ssl.keystore.location", "sasl.enabled.mechanisms", "authorizer.class.name"])
def test_security_keys_are_refused_and_not_passed_over(name: str) -> None:
    assert "PLAINTEXT listeners without authentication" in refusal({name: "x"})


def test_keys_without_effect_are_accepted_with_a_warning() -> None:
    config = BrokerConfig({"zookeeper.connect": "z:2181", "num.io.threads": "8"})
    assert config.warnings == (
        "zookeeper.connect has no effect in tailrace",
        "num.io.threads has no effect in tailrace",
    )
    assert dict(config.raw) == {}


def test_broker_id_and_log_dir_are_other_names_of_node_id_and_log_dirs() -> None:
    config = BrokerConfig({"broker.id": "7", "log.dir": "/a"})
    assert config.get_int("node.id") == 7
    assert config.source("node.id") is ConfigSource.STATIC_BROKER
    assert config.get_list("log.dirs") == ("/a",)
    assert BrokerConfig({"log.dir": "/a", "log.dirs": "/b,/c"}).get_list("log.dirs") == ("/b", "/c")


def test_two_different_broker_numbers_are_refused_and_two_equal_ones_are_not() -> None:
    assert "both name the same setting" in refusal({"node.id": "1", "broker.id": "2"})
    assert BrokerConfig({"node.id": "2", "broker.id": 2}).get_int("node.id") == 2


# --- Listeners


def test_listeners_are_parsed_with_names_hosts_and_ports() -> None:
    config = BrokerConfig(
        {
            "listeners": "plaintext://localhost:0, INSIDE://[::1]:9093,OUTSIDE://:9094",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,inside:plaintext,OUTSIDE:PLAINTEXT",
        }
    )
    parsed = [(e.listener_name, e.host, e.port, e.security_protocol) for e in config.listeners]
    assert parsed == [
        ("PLAINTEXT", "localhost", 0, "PLAINTEXT"),
        ("INSIDE", "::1", 9093, "PLAINTEXT"),
        ("OUTSIDE", "", 9094, "PLAINTEXT"),
    ]
    assert [e.is_every_interface for e in config.listeners] == [False, False, True]
    assert str(config.listeners[1]) == "INSIDE://[::1]:9093"


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_listener_on_every_interface_is_advertised_under_the_host_name(host: str) -> None:
    config = BrokerConfig({"listeners": f"PLAINTEXT://{host}:9092"})
    assert config.listeners[0].is_every_interface
    assert config.advertised_listeners[0].host == socket.gethostname()
    assert config.advertised_listeners[0].port == 9092


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_every_interface_cannot_be_advertised(host: str) -> None:
    assert "is not an address that a client can connect to" in refusal(
        {"advertised.listeners": f"PLAINTEXT://{host}:9092"}
    )


def test_a_listener_that_is_not_advertised_keeps_its_own_address() -> None:
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,INSIDE://127.0.0.1:9093",
            "advertised.listeners": "INSIDE://queue.example.org:19093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        }
    )
    assert [str(endpoint) for endpoint in config.advertised_listeners] == [
        "INSIDE://queue.example.org:19093",
        "PLAINTEXT://127.0.0.1:9092",
    ]


@pytest.mark.parametrize(
    ("listeners", "why"),
    [
        ("127.0.0.1:9092", "is not NAME://host:port"),
        ("PLAINTEXT://::1:9092", "is not NAME://host:port"),
        ("PLAINTEXT://[127.0.0.1]:9092", "is not NAME://host:port"),
        ("PLAINTEXT://localhost:-1", "is not NAME://host:port"),
        ("PLAINTEXT://localhost:65536", "above 65535"),
        ("PLAINTEXT://localhost:1,PLAINTEXT://localhost:2", "Each listener must have a different name"),
        ("OTHER://localhost:1", "No security protocol defined for listener OTHER"),
        ("SSL://localhost:1", "Listener SSL uses SSL, which tailrace does not support yet"),
    ],
)
def test_an_impossible_listener_is_refused(listeners: str, why: str) -> None:
    message = refusal({"listeners": listeners})
    assert message.startswith(f"Invalid value {listeners} for configuration listeners: ")
    assert why in message


def test_two_listeners_share_a_port_only_as_ipv4_beside_ipv6_or_as_any_free_port() -> None:
    names = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
    assert "must have a different port" in refusal({**names, "listeners": "A://127.0.0.1:9092,B://127.0.0.2:9092"})
    for listeners in ("A://127.0.0.1:9092,B://[::1]:9092", "A://127.0.0.1:0,B://127.0.0.1:0"):
        assert len(BrokerConfig({**names, "listeners": listeners}).listeners) == 2


def test_an_advertised_name_that_nobody_listens_under_is_refused() -> None:
    assert "advertised but not among the listeners" in refusal(
        {
            "advertised.listeners": "OUT://example.org:1",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:PLAINTEXT",
        }
    )


@pytest.mark.parametrize("items", ["PLAINTEXT", "PLAINTEXT:TLS", ":SSL", "A:SSL,a:SSL"])
def test_a_protocol_map_that_makes_no_sense_is_refused(items: str) -> None:
    assert refusal({"listener.security.protocol.map": items}).startswith(
        f"Invalid value {items} for configuration listener.security.protocol.map: "
    )


def test_a_broker_left_with_controller_listeners_only_is_refused() -> None:
    assert "No listener remains for clients" in refusal(
        {"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}
    )


# --- Topics


@pytest.mark.parametrize(
    ("settings", "retention_ms", "decided_by"),
    [
        ({}, 336 * 3_600_000, "log.retention.hours"),
        ({"log.retention.hours": "2"}, 7_200_000, "log.retention.hours"),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000, "log.retention.minutes"),
        ({"log.retention.minutes": "3", "log.retention.ms": "5"}, 5, "log.retention.ms"),
        ({"log.retention.hours": "-1"}, -1, "log.retention.hours"),
    ],
)
def test_the_finest_retention_setting_decides(settings: dict[str, str], retention_ms: int, decided_by: str) -> None:
    config = BrokerConfig(settings)
    assert config.topic_config({}).retention_ms == retention_ms
    default = config.topic_default("retention.ms")
    source = ConfigSource.STATIC_BROKER if settings else ConfigSource.DEFAULT
    assert default == (str(retention_ms), source, decided_by)


def test_a_topic_inherits_from_the_broker_and_overrides_it() -> None:
    config = BrokerConfig(
        {
            "log.roll.hours": "1",
            "log.segment.bytes": "2097152",
            "log.message.timestamp.type": "LogAppendTime",
            "log.flush.interval.ms": "50",
            "message.max.bytes": "99",
            "min.insync.replicas": "2",
        }
    )
    inherited = config.topic_config({})
    assert (inherited.segment_ms, inherited.segment_bytes, inherited.flush_ms) == (3_600_000, 2_097_152, 50)
    assert (inherited.log_append_time, inherited.max_message_bytes) == (True, 99)
    overridden = config.topic_config({"segment.ms": "10", "message.timestamp.type": "CreateTime"})
    assert (overridden.segment_ms, overridden.log_append_time) == (10, False)
    assert overridden.segment_bytes == 2_097_152
    assert config.topic_int("min.insync.replicas", {}) == 2
    assert config.topic_int("min.insync.replicas", {"min.insync.replicas": "3"}) == 3


#: A value other than the default for each topic key that shapes a log, and the field where it must arrive.
OVERRIDES = {
    "compression.type": ("snappy", "compression", Compression.SNAPPY),
    "file.delete.delay.ms": ("11", "file_delete_delay_ms", 11),
    "flush.messages": ("12", "flush_messages", 12),
    "flush.ms": ("13", "flush_ms", 13),
    "index.interval.bytes": ("14", "index_interval_bytes", 14),
    "max.message.bytes": ("15", "max_message_bytes", 15),
    "delete.retention.ms": ("21", "delete_retention_ms", 21),
    "max.compaction.lag.ms": ("22", "max_compaction_lag_ms", 22),
    "min.cleanable.dirty.ratio": ("0.25", "min_cleanable_ratio", 0.25),
    "min.compaction.lag.ms": ("23", "min_compaction_lag_ms", 23),
    "message.timestamp.after.max.ms": ("16", "timestamp_after_max_ms", 16),
    "message.timestamp.before.max.ms": ("17", "timestamp_before_max_ms", 17),
    "message.timestamp.type": ("LogAppendTime", "log_append_time", True),
    "retention.bytes": ("18", "retention_bytes", 18),
    "retention.ms": ("-1", "retention_ms", -1),
    "segment.bytes": ("1048577", "segment_bytes", 1_048_577),
    "segment.index.bytes": ("19", "segment_index_bytes", 19),
    "segment.ms": ("20", "segment_ms", 20),
    "tailrace.records.validate": ("true", "validates_records", True),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_each_topic_override_arrives_at_its_own_field_of_the_log(name: str) -> None:
    text, field, value = OVERRIDES[name]
    config = BrokerConfig().topic_config({name: text})
    given = [field.name for field in dataclasses.fields(LogConfig) if field.init]
    changed = [slot for slot in given if getattr(config, slot) != getattr(LogConfig(), slot)]
    assert changed == [field]
    assert getattr(config, field) == value


def test_the_level_of_the_codec_in_use_arrives_and_no_other() -> None:
    levels = {"compression.gzip.level": "4", "compression.lz4.level": "5", "compression.zstd.level": "-6"}
    for codec, level in (("gzip", 4), ("lz4", 5), ("zstd", -6), ("snappy", None), ("uncompressed", None)):
        config = BrokerConfig().topic_config({"compression.type": codec, **levels})
        assert config.compression_level == level
        assert config.looks_into_batches
    assert BrokerConfig({"compression.type": "zstd"}).topic_config({}).compression_level == 3
    assert BrokerConfig().topic_config(levels) == LogConfig()


def test_only_topics_that_ask_for_it_have_their_batches_looked_into() -> None:
    config = BrokerConfig()
    assert not config.topic_config({}).looks_into_batches
    assert not config.topic_config({"message.timestamp.after.max.ms": "5"}).looks_into_batches
    assert config.topic_config({"message.timestamp.before.max.ms": "5"}).looks_into_batches
    assert config.topic_config({"tailrace.records.validate": "true"}).looks_into_batches
    assert BrokerConfig({"tailrace.records.validate": "true"}).topic_config({}).looks_into_batches
    stamped = {"message.timestamp.before.max.ms": "5", "message.timestamp.type": "LogAppendTime"}
    assert not config.topic_config(stamped).looks_into_batches


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("compression.gzip.level", "0", "Value must be at least 1, or -1"),
        ("compression.gzip.level", "10", "Value must be no more than 9, or -1"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("compression.zstd.level", "-131073", "Value must be at least -131072"),
        ("max.connections.per.ip.overrides", "127.0.0.1", "'127.0.0.1' is not of the form address:count"),
        ("max.connections.per.ip.overrides", "somewhere:4", "'somewhere' is not an IP address"),
        ("max.connections.per.ip.overrides", "::1:4,::1:5", "::1 appears twice in the list"),
        ("queued.max.request.bytes", "0", "Value must be at least 1, or -1"),
    ],
)
def test_bounds_of_codecs_and_connections_are_checked(name: str, value: str, why: str) -> None:
    assert refusal({name: value}) == f"Invalid value {value} for configuration {name}: {why}"


def test_topic_overrides_are_refused_in_kafkas_words() -> None:
    config = BrokerConfig()
    config.validate_topic_overrides({"retention.ms": "1000", "cleanup.policy": "delete"})
    with pytest.raises(ConfigError, match=r"^Unknown topic config name: retention\.msec; did you mean retention\.ms\?"):
        config.validate_topic_overrides({"retention.msec": "1"})
    with pytest.raises(
        ConfigError, match=r"^Invalid value -2 for configuration retention\.ms: Value must be at least -1$"
    ):
        config.validate_topic_overrides({"retention.ms": "-2"})
    with pytest.raises(
        ConfigError,
        match=r"conflict topic config setting min\.compaction\.lag\.ms \(9\) > max\.compaction\.lag\.ms \(8\)",
    ):
        config.validate_topic_overrides({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})


def test_a_topic_may_be_compacted_deleted_or_both() -> None:
    config = BrokerConfig()
    policies = {"delete": (True, False), "compact": (False, True), "compact,delete": (True, True)}
    for text, expected in policies.items():
        found = config.topic_config({"cleanup.policy": text})
        assert (found.delete_expired, found.compact) == expected


def test_a_compacted_topic_rolls_its_segments_before_its_records_have_waited_too_long() -> None:
    settings = {"segment.ms": "1000", "max.compaction.lag.ms": "300"}
    assert BrokerConfig().topic_config({**settings, "cleanup.policy": "compact"}).roll_ms == 300
    assert BrokerConfig().topic_config({**settings, "cleanup.policy": "delete"}).roll_ms == 1000
    assert BrokerConfig().topic_config({"segment.ms": "1000", "cleanup.policy": "compact"}).roll_ms == 1000


def test_what_configures_the_cleaner_has_kafkas_defaults() -> None:
    config = BrokerConfig()
    expected = {
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": "15000",
        "log.cleaner.dedupe.buffer.size": "134217728",
        "log.cleaner.io.buffer.load.factor": "0.9",
        "log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308",
        "log.cleaner.min.cleanable.ratio": "0.5",
        "log.cleaner.delete.retention.ms": "86400000",
        "log.cleaner.min.compaction.lag.ms": "0",
        "log.cleaner.max.compaction.lag.ms": "9223372036854775807",
    }
    assert {name: config.text(name) for name in expected} == expected
    assert BrokerConfig({"log.cleaner.threads": "4"}).warnings == ("log.cleaner.threads has no effect in tailrace",)


def test_every_topic_key_takes_its_default_from_a_broker_key_of_the_same_meaning() -> None:
    config = BrokerConfig()
    for name, key in TOPIC_KEYS.items():
        assert all(synonym.name in BROKER_KEYS for synonym in key.synonyms), name
        assert config.topic_default(name).value == value_text(key.default), name


def test_importing_the_configuration_does_not_import_what_only_errors_and_files_need() -> None:
    program = (
        "import sys, tailrace.broker.config.broker_config;"
        "print([m for m in ('difflib', 'tomllib', 'asyncio', 'socket', 'tailrace.broker.config.docs',"
        " 'tailrace.broker.config.file') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
