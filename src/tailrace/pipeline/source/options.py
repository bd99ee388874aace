"""The options of the data source for reading, with the names, defaults and meaning of Spark's Kafka connector.

Owns which options exist and what their values mean; each one is checked when a query is planned. Names are
case-insensitive, as everywhere in Spark. It must not know brokers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from tailrace.model import TopicPartition, topic_name_problem
from tailrace.pipeline.failures import OptionError
from tailrace.pipeline.source.client_settings import ClientSettings, parse_client_settings
from tailrace.pipeline.source.offsets import (
    EARLIEST,
    EARLIEST_POSITION,
    LATEST,
    LATEST_POSITION,
    AtEnd,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Position,
    parse_assignment,
    parse_partition_numbers,
)
from tailrace.pipeline.source.schema import COLUMNS, DEFAULT_COLUMNS, HEADERS

_OPTIONS = (
    "assign",
    "columns",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnCorruptBatch",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "tailrace.archive",
    "tailrace.archive.uri",
    "timeIndex",
)
_CANONICAL = {name.lower(): name for name in _OPTIONS}
_CHOICES = ("assign", "subscribe", "subscribePattern")
_FOR_BATCHES_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_EXAMPLE = '{"topicA":{"0":1700000000000,"1":1700000000000}}'
_CLIENT_PREFIX = "kafka."
_LOCATION_PREFIX = "tailrace.archive."
_DEFAULT_POLL_TIMEOUT_MS = 120_000
_DEFAULT_TRIGGER_DELAY_MS = 15 * 60_000
_DELAY = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.IGNORECASE)
_DELAY_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions to read: of topics by name, of topics by pattern, or single ones."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """How a query accesses archived records: whether from files, their location, and options of that location."""

    reads_files: bool = True
    #: None for the location that the brokers name.
    uri: str | None = None
    #: Must not be shown: it may contain credentials.
    location_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A query's options for reading topics."""

    client: ClientSettings
    selection: Selection
    columns: tuple[str, ...]
    starting: Position
    ending: Position
    #: If true, a starting time after the newest record means the log end; otherwise it is an error.
    late_start_is_latest: bool
    fail_on_data_loss: bool
    #: Whether a batch that cannot be decoded fails the query; otherwise it is skipped.
    fail_on_corrupt_batch: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    poll_timeout_ms: int
    archive: ArchiveAccess
    #: If true, a condition on the time begins where brokers find that time by the headers of batches.
    uses_time_index: bool = False


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check all options of a read; OptionError says which one is wrong and what is expected."""
    named, client, location = _sort_out(options)
    for name in _FOR_BATCHES_ONLY if streaming else ():
        if name in named:
            raise OptionError(f"option '{name}' is not allowed for streams: a stream has no end")
    max_offsets = _positive(named, "maxOffsetsPerTrigger") if streaming else None
    min_offsets = _positive(named, "minOffsetsPerTrigger") if streaming else None
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise OptionError(
            f"option 'maxOffsetsPerTrigger' ({max_offsets}) must not be below 'minOffsetsPerTrigger' ({min_offsets})"
        )
    _integer(named, "fetchOffset.numRetries", least=0)
    _integer(named, "fetchOffset.retryIntervalMs", least=0)
    return ReadOptions(
        client=parse_client_settings(client),
        selection=_selection(named),
        columns=_columns(named),
        starting=_starting(named, streaming=streaming),
        ending=LATEST_POSITION if streaming else _ending(named),
        late_start_is_latest=_one_of(named, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fail_on_data_loss=_boolean(named, "failOnDataLoss", default=True),
        fail_on_corrupt_batch=_boolean(named, "failOnCorruptBatch", default=True),
        min_partitions=_positive(named, "minPartitions"),
        max_records_per_partition=_positive(named, "maxRecordsPerPartition"),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=_delay_ms(named, "maxTriggerDelay", _DEFAULT_TRIGGER_DELAY_MS),
        poll_timeout_ms=_positive(named, "kafkaConsumer.pollTimeoutMs") or _DEFAULT_POLL_TIMEOUT_MS,
        archive=ArchiveAccess(
            reads_files=_one_of(named, "tailrace.archive", ("auto", "never")) == "auto",
            uri=named.get("tailrace.archive.uri"),
            location_options=tuple(sorted(location.items())),
        ),
        uses_time_index=_boolean(named, "timeIndex", default=False),
    )


def chosen_by_options(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that options choose, which is all that the schema needs."""
    return _columns(_sort_out(options)[0])


def _sort_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the source's own options by their proper names; the client's and archive's without prefixes."""
    named: dict[str, str] = {}
    client: dict[str, str] = {}
    location: dict[str, str] = {}
    for given, value in options.items():
        lower = given.lower()
        if lower.startswith(_CLIENT_PREFIX):
            client[lower.removeprefix(_CLIENT_PREFIX)] = value.strip()
        elif lower in _CANONICAL:
            named[_CANONICAL[lower]] = value.strip()
        elif lower.startswith(_LOCATION_PREFIX):
            location[lower.removeprefix(_LOCATION_PREFIX)] = value.strip()
        else:
            raise _unknown(given)
    return named, client, location


def _unknown(given: str) -> OptionError:
    lower = given.lower()
    if lower == "path":
        return OptionError("a topic has no path: name topics with option 'subscribe', not in load()")
    if lower == "topic":
        return OptionError("option 'topic' is for writing; to read a topic use 'subscribe'")
    if lower == "bootstrap.servers":
        return OptionError("unknown option 'bootstrap.servers'; did you mean 'kafka.bootstrap.servers'?")
    near = get_close_matches(lower, _CANONICAL, n=1)
    hint = f"did you mean '{_CANONICAL[near[0]]}'?" if near else f"the options are {', '.join(_OPTIONS)} and kafka.*"
    return OptionError(f"unknown option '{given}'; {hint}")


def _selection(named: Mapping[str, str]) -> Selection:
    given = [name for name in _CHOICES if name in named]
    if len(given) != 1:
        problem = f"not both {' and '.join(given)}" if given else "none is given"
        raise OptionError(f"exactly one of the options subscribe, subscribePattern and assign is required, {problem}")
    (choice,) = given
    text = named[choice]
    if choice == "assign":
        return Selection(assigned=parse_assignment(choice, text))
    if choice == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option 'subscribePattern' is not a regular expression: {error}") from None
        if not text:
            raise OptionError("option 'subscribePattern' is empty; expected a pattern such as orders-.*")
        return Selection(pattern=text)
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise OptionError("option 'subscribe' names no topic; expected one or several, such as orders,payments")
    for topic in topics:
        problem_with_name = topic_name_problem(topic)
        if problem_with_name is not None:
            raise OptionError(f"option 'subscribe': {problem_with_name}")
    return Selection(topics=topics)


def _columns(named: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _boolean(named, "includeHeaders", default=False)
    if "columns" not in named:
        return COLUMNS if with_headers else DEFAULT_COLUMNS
    canonical = {name.lower(): name for name in COLUMNS}
    chosen: dict[str, None] = {}
    for name in named["columns"].split(","):
        column = canonical.get(name.strip().lower())
        if column is None:
            raise OptionError(f"option 'columns': a topic has no column '{name.strip()}'; it has {', '.join(COLUMNS)}")
        chosen[column] = None
    if with_headers:
        chosen[HEADERS] = None
    return tuple(chosen)


def _starting(named: Mapping[str, str], *, streaming: bool) -> Position:
    timed = _by_time(named, "startingTimestamp", "startingOffsetsByTimestamp")
    if timed is not None:
        return timed
    text = named.get("startingOffsets", "latest" if streaming else "earliest")
    position = _ends_or_offsets("startingOffsets", text)
    if not streaming:
        latest = isinstance(position, AtEnd) and not position.earliest
        if latest or (isinstance(position, AtOffsets) and LATEST in position.offsets.values()):
            raise OptionError(
                "option 'startingOffsets' cannot be the latest (-1) in a batch query, there would be nothing to read"
            )
    return position


def _ending(named: Mapping[str, str]) -> Position:
    timed = _by_time(named, "endingTimestamp", "endingOffsetsByTimestamp")
    if timed is not None:
        return timed
    position = _ends_or_offsets("endingOffsets", named.get("endingOffsets", "latest"))
    earliest = isinstance(position, AtEnd) and position.earliest
    if earliest or (isinstance(position, AtOffsets) and EARLIEST in position.offsets.values()):
        raise OptionError("option 'endingOffsets' cannot be the earliest (-2), there would be nothing to read")
    return position


def _by_time(named: Mapping[str, str], for_all: str, for_each: str) -> Position | None:
    if for_all in named:
        return AtTimestamp(_integer(named, for_all, least=0) or 0)
    if for_each not in named:
        return None
    timestamps = parse_partition_numbers(for_each, named[for_each], _TIMESTAMPS_EXAMPLE)
    for partition, timestamp in timestamps.items():
        if timestamp < 0:
            raise OptionError(f"option '{for_each}' has the time {timestamp} for {partition}; expected 0 or later")
    return AtTimestamps(timestamps)


def _ends_or_offsets(name: str, text: str) -> Position:
    lower = text.lower()
    if lower == "earliest":
        return EARLIEST_POSITION
    if lower == "latest":
        return LATEST_POSITION
    if not text.startswith("{"):
        raise OptionError(f"option '{name}' is '{text}'; expected earliest, latest or JSON such as {_OFFSETS_EXAMPLE}")
    offsets = parse_partition_numbers(name, text, _OFFSETS_EXAMPLE)
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(f"option '{name}' has the offset {offset} for {partition}; expected 0 or more, -1 or -2")
    return AtOffsets(offsets)


def _one_of(named: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    value = named.get(name, values[0]).lower()
    if value not in values:
        raise OptionError(f"option '{name}' is '{named[name]}'; expected {' or '.join(values)}")
    return value


def _boolean(named: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _one_of({name: named.get(name, str(default))}, name, ("true", "false")) == "true"


def _positive(named: Mapping[str, str], name: str) -> int | None:
    return _integer(named, name, least=1)


def _integer(named: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = named.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise OptionError(f"option '{name}' is '{text}'; expected a whole number of at least {least}")
    return int(text)


def _delay_ms(named: Mapping[str, str], name: str, default_ms: int) -> int:
    text = named.get(name)
    if text is None:
        return default_ms
    match = _DELAY.fullmatch(text)
    if match is None:
        raise OptionError(f"option '{name}' is '{text}'; expected a time such as 30s, 15m or 1h")
    return int(int(match[1]) * _DELAY_MS[(match[2] or "ms").lower()])
