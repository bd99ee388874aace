"""The options of a write: the Java producer's names, checked before anything is written."""

from __future__ import annotations

import pytest

from tailrace.pipeline.failures import OptionError
from tailrace.pipeline.sink.settings import WriteSettings, write_settings
from tailrace.records.compression import Compression

SERVERS = {"kafka.bootstrap.servers": "one:9092, [::1]:9093"}


def test_defaults_are_those_of_the_java_producer() -> None:
    assert write_settings(SERVERS) == WriteSettings(bootstrap=(("one", 9092), ("::1", 9093)))
    settings = write_settings(SERVERS)
    assert (settings.acks, settings.is_idempotent, settings.delivery_timeout_ms) == (-1, True, 120_000)


def test_names_are_known_in_any_case_and_other_options_are_left_alone() -> None:
    given = {**SERVERS, "Topic": "orders", "KAFKA.Compression.Type": "ZSTD", "checkpointLocation": "x", "path": "y"}
    settings = write_settings(given)
    assert (settings.topic, settings.compression) == ("orders", Compression.ZSTD)


def test_settings_that_only_tune_the_java_producer_are_accepted() -> None:
    assert write_settings({**SERVERS, "kafka.linger.ms": "5", "kafka.batch.size": "1000000"}) == write_settings(SERVERS)


def test_weaker_acks_give_up_numbered_batches_and_send_one_at_a_time() -> None:
    settings = write_settings({**SERVERS, "kafka.acks": "1", "kafka.max.in.flight.requests.per.connection": "5"})
    assert (settings.acks, settings.is_idempotent, settings.max_in_flight) == (1, False, 1)


def test_a_request_limit_bounds_rows_and_batches() -> None:
    settings = write_settings({**SERVERS, "kafka.max.request.size": "5000"})
    assert (settings.max_record_bytes, settings.max_batch_bytes) == (5000, 5000)
    assert write_settings({**SERVERS, "kafka.max.request.size": "50000000"}).max_batch_bytes == 1_000_000


def test_levels_belong_to_their_codec() -> None:
    given = {**SERVERS, "kafka.compression.type": "gzip", "kafka.compression.gzip.level": "9"}
    assert write_settings({**given, "kafka.compression.zstd.level": "3"}).compression_level == 9
    with pytest.raises(OptionError, match=r"'kafka\.compression\.gzip\.level' must be from 1 to 9, not 10"):
        write_settings({**given, "kafka.compression.gzip.level": "10"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kafka.bootstrap.servers": ""}, "option 'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "one"}, "expected HOST:PORT"),
        ({"topic": " "}, "option 'topic' is empty"),
        ({"includeHeaders": "maybe"}, "option 'includeHeaders' must be true or false"),
        ({"kafka.acks": "0"}, "could lose rows silently; use 1 or all"),
        ({"kafka.acks": "2"}, "option 'kafka.acks' must be 1 or all, not '2'"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "must be all if 'kafka.enable.idempotence'"),
        ({"kafka.compression.type": "rar"}, "must be one of none, gzip, snappy, lz4, zstd, not 'rar'"),
        ({"kafka.request.timeout.ms": "soon"}, "option 'kafka.request.timeout.ms' must be a number, not 'soon'"),
        ({"kafka.delivery.timeout.ms": "10"}, "must be at least 'kafka.request.timeout.ms'"),
        ({"kafka.value.serializer": "x"}, "option 'kafka.value.serializer' is not supported: values are strings or"),
        ({"kafka.transactional.id": "x"}, "a write is at least once, not transactional"),
        ({"kafka.security.protocol": "SSL"}, "option 'kafka.security.protocol' is not supported yet"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "option 'kafka.sasl.mechanism' is not supported yet"),
        ({"kafka.ack": "all"}, "unknown option 'kafka.ack'; did you mean 'kafka.acks'?"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        write_settings({**SERVERS, **options})
    assert reason in str(caught.value)
