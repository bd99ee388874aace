"""The options of a write: the topic, and the settings of Kafka's Java producer that apply here.

Names, defaults and meanings are the Java producer's, with the prefix `kafka.`, so that a job for Spark's Kafka
connector keeps its options. Settings that would change what is written but are not supported are refused; settings that
only tune the Java producer are accepted without an effect; unknown ones are an error. It must not know Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.pipeline.failures import OptionError
from tailrace.pipeline.source.client_settings import DEFAULT_CLIENT_ID, check_addresses, check_security
from tailrace.protocol_client.security import SecuritySettings, is_security_setting
from tailrace.protocol_client.settings import Address, ClusterSettings, ConnectionSettings, join_address
from tailrace.records.compression import Compression

_PREFIX = "kafka."
_SERVERS = "bootstrap.servers"
_MAX_BATCH_BYTES = 1_000_000
_INT_MAX = 2**31 - 1

#: Settings of the Java producer without an effect here: batches are as large as Spark's own, and are sent at once.
_WITHOUT_EFFECT = frozenset(
    (
        "batch.size",
        "linger.ms",
        "retries",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "connections.max.idle.ms",
        "client.dns.lookup",
        "client.rack",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "auto.include.jmx.reporter",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
    )
)
_REFUSED = {
    "key.serializer": "keys are strings or bytes and are written unchanged",
    "value.serializer": "values are strings or bytes and are written unchanged",
    "transactional.id": "a write is at least once, not transactional",
    "interceptor.classes": "there is no Java producer to intercept",
    "partitioner.class": "the 'partition' column or the key of a row chooses its partition; use that column",
}
_USED = frozenset(
    (
        "bootstrap.servers",
        "acks",
        "compression.type",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "max.request.size",
        "buffer.memory",
        "max.in.flight.requests.per.connection",
        "request.timeout.ms",
        "delivery.timeout.ms",
        "max.block.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "client.id",
        "enable.idempotence",
        "partitioner.ignore.keys",
        "socket.connection.setup.timeout.ms",
    )
)
_LEVELS = {Compression.GZIP: (1, 9), Compression.LZ4: (1, 17), Compression.ZSTD: (-131072, 22)}


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """Checked settings of a write."""

    bootstrap: tuple[Address, ...]
    topic: str | None = None
    client_id: str = DEFAULT_CLIENT_ID
    acks: int = -1
    compression: Compression = Compression.NONE
    compression_level: int | None = None
    ignore_keys: bool = False
    max_batch_bytes: int = _MAX_BATCH_BYTES
    #: None if it is not set: then the topic's own limit applies.
    max_record_bytes: int | None = None
    buffer_bytes: int = 32 << 20
    max_in_flight: int = 5
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    security: SecuritySettings = field(default_factory=SecuritySettings)

    @property
    def is_idempotent(self) -> bool:
        """Whether batches are numbered: without acks from all, a leader's death would leave a gap in the numbers."""
        return self.acks == -1

    @property
    def servers(self) -> str:
        """The addresses as the user gave them."""
        return ",".join(map(join_address, self.bootstrap))

    @property
    def cluster(self) -> ClusterSettings:
        """The settings for the connection to the cluster."""
        return ClusterSettings(
            self.servers,
            ConnectionSettings(
                client_id=self.client_id,
                connect_timeout_ms=self.connect_timeout_ms,
                request_timeout_ms=self.request_timeout_ms,
                security=self.security,
            ),
            api_timeout_ms=self.max_block_ms,
            retry_backoff_ms=self.retry_backoff_ms,
        )


def write_settings(options: Mapping[str, str]) -> WriteSettings:
    """Check the options of a write; OptionError says which one is wrong and what is expected."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    kafka = {name.removeprefix(_PREFIX): value for name, value in given.items() if name.startswith(_PREFIX)}
    _check_names(kafka)
    if not kafka.get(_SERVERS):
        raise OptionError("option 'kafka.bootstrap.servers' is missing; give the brokers as HOST:PORT,HOST:PORT")
    security = check_security(kafka)
    topic = given.get("topic")
    if topic is not None and not topic:
        raise OptionError("option 'topic' is empty; give the name of a topic, or a column 'topic'")
    _flag(given, "includeheaders", "includeHeaders")
    acks = _acks(kafka)
    codec = _compression(kafka)
    limit = _number(kafka, "max.request.size", _INT_MAX, 1) if "max.request.size" in kafka else None
    request_timeout_ms = _number(kafka, "request.timeout.ms", 30_000, 1)
    delivery_timeout_ms = _number(kafka, "delivery.timeout.ms", max(120_000, request_timeout_ms), 1)
    if delivery_timeout_ms < request_timeout_ms:
        raise OptionError("option 'kafka.delivery.timeout.ms' must be at least 'kafka.request.timeout.ms'")
    in_flight = _number(kafka, "max.in.flight.requests.per.connection", 5, 1)
    return WriteSettings(
        bootstrap=tuple(check_addresses(kafka[_SERVERS])),
        topic=topic,
        client_id=kafka.get("client.id") or DEFAULT_CLIENT_ID,
        acks=acks,
        compression=codec,
        compression_level=_level(kafka, codec),
        ignore_keys=_flag(kafka, "partitioner.ignore.keys", "kafka.partitioner.ignore.keys"),
        max_batch_bytes=_MAX_BATCH_BYTES if limit is None else min(_MAX_BATCH_BYTES, limit),
        max_record_bytes=limit,
        buffer_bytes=_number(kafka, "buffer.memory", 32 << 20, 1),
        # The broker remembers five batches of a producer; and without numbers, only a single batch in flight keeps the
        # order.
        max_in_flight=min(in_flight, 5) if acks == -1 else 1,
        connect_timeout_ms=_number(kafka, "socket.connection.setup.timeout.ms", 10_000, 1),
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=delivery_timeout_ms,
        max_block_ms=_number(kafka, "max.block.ms", 60_000, 0),
        retry_backoff_ms=_number(kafka, "retry.backoff.ms", 100, 0),
        retry_backoff_max_ms=_number(kafka, "retry.backoff.max.ms", 1_000, 0),
        security=security,
    )


def _check_names(kafka: Mapping[str, str]) -> None:
    for name in kafka:
        if name in _REFUSED:
            raise OptionError(f"option '{_PREFIX}{name}' is not supported: {_REFUSED[name]}")
        if name not in _USED and name not in _WITHOUT_EFFECT and not is_security_setting(name):
            near = difflib.get_close_matches(name, [*_USED, *_WITHOUT_EFFECT], 1)
            hint = f"; did you mean '{_PREFIX}{near[0]}'?" if near else ", which is not a setting of a Kafka producer"
            raise OptionError(f"unknown option '{_PREFIX}{name}'{hint}")


def _acks(kafka: Mapping[str, str]) -> int:
    acks = kafka.get("acks", "all").lower()
    if acks == "0":
        raise OptionError("option 'kafka.acks' is 0, which could lose rows silently; use 1 or all")
    if acks not in ("1", "-1", "all"):
        raise OptionError(f"option 'kafka.acks' must be 1 or all, not '{kafka['acks']}'")
    idempotence = _flag(kafka, "enable.idempotence", "kafka.enable.idempotence", default=acks != "1")
    if acks == "1" and idempotence:
        raise OptionError("option 'kafka.acks' must be all if 'kafka.enable.idempotence' is true")
    return 1 if acks == "1" else -1


def _compression(kafka: Mapping[str, str]) -> Compression:
    name = kafka.get("compression.type", "none")
    try:
        return Compression[name.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Compression)
        raise OptionError(f"option 'kafka.compression.type' must be one of {names}, not '{name}'") from None


def _level(kafka: Mapping[str, str], codec: Compression) -> int | None:
    name = f"compression.{codec.name.lower()}.level"
    if name not in kafka:
        return None
    least, most = _LEVELS[codec]
    return _number(kafka, name, least, least, most)


def _number(kafka: Mapping[str, str], name: str, default: int, least: int, most: int = _INT_MAX) -> int:
    text = kafka.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"option '{_PREFIX}{name}' must be a number, not '{text}'") from None
    if not least <= number <= most:
        raise OptionError(f"option '{_PREFIX}{name}' must be from {least} to {most}, not {number}")
    return number


def _flag(given: Mapping[str, str], name: str, shown: str, *, default: bool = False) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option '{shown}' must be true or false, not '{text}'")
    return text.lower() == "true"
