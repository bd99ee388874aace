"""Every metric of a broker in one table: its name, its meaning, and the source of its values.

Names are Kafka's, as the usual rules of the Prometheus JMX exporter spell them, if Kafka has the same metric; the
others begin with `tailrace_`, or with `process_` and `python_` as in Prometheus's own clients. Values are read at each
scrape. A scrape runs in turns with other work, so samples come from copies of what may change.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from tailrace import __version__
from tailrace.broker.monitoring.archive_metrics import ARCHIVE_METRICS
from tailrace.broker.monitoring.exposition import Sample, labels
from tailrace.broker.monitoring.group_metrics import GROUP_METRICS
from tailrace.broker.monitoring.metric import Metric, Samples
from tailrace.broker.monitoring.metric import counter as _counter
from tailrace.broker.monitoring.metric import gauge as _gauge
from tailrace.broker.monitoring.metric import histogram as _histogram
from tailrace.broker.monitoring.metric import one as _one
from tailrace.broker.monitoring.observed import Look
from tailrace.broker.monitoring.transaction_metrics import TRANSACTION_METRICS
from tailrace.errors import ErrorCode, StorageError
from tailrace.replication.partition import Partition
from tailrace.replication.traffic import TopicTraffic
from tailrace.runtime.process import ProcessUsage
from tailrace.wire.apis import ApiKey

# --- sources of values


def _traffic(value: Callable[[TopicTraffic], int]) -> Samples:
    """Return one sample without a topic label for all topics, and one for each topic."""

    def samples(look: Look) -> Iterator[Sample]:
        traffic = look.observed.partitions.traffic
        yield Sample("", value(traffic.total()))
        for topic, of_topic in traffic:
            yield Sample(labels(topic=topic), value(of_topic))

    return samples


def _partitions(value: Callable[[Partition], int]) -> Samples:
    """Return one sample for each log, except logs on failed disks."""

    def samples(look: Look) -> Iterator[Sample]:
        for partition in look.observed.partitions:
            if partition.directory.failure is not None:
                continue
            topic, number = partition.partition
            try:
                # Topic names have no characters that need escaping.
                yield Sample(f'topic="{topic}",partition="{number}"', value(partition))
            except StorageError:
                continue  # deleted since this scrape began

    return samples


def _process(value: Callable[[ProcessUsage], float]) -> Samples:
    return lambda look: [] if look.usage is None else [Sample("", value(look.usage))]


def _request_name(api_key: int) -> str:
    """Return an API's name in Kafka's spelling: LIST_OFFSETS is ListOffsets."""
    return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))


def _requests(look: Look) -> Iterator[Sample]:
    for api_key, counters in list(look.observed.counters.requests.items()):
        for version, counter in enumerate(counters.versions):
            if counter.requests:
                yield Sample(labels(request=_request_name(api_key), version=version), counter.requests)


def _request_times(look: Look) -> Iterator[Sample]:
    for api_key, counters in list(look.observed.counters.requests.items()):
        if any(counters.times.counts):
            yield Sample(labels(request=_request_name(api_key)), counters.times)


def _request_errors(look: Look) -> Iterator[Sample]:
    for api_key, counters in list(look.observed.counters.requests.items()):
        for code, count in list(counters.errors.items()):
            yield Sample(labels(request=_request_name(api_key), error=_error_name(code)), count)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _connections(value: Callable[[int, int], int]) -> Samples:
    """Return samples by listener, from the numbers of accepted and of ended connections."""

    def samples(look: Look) -> Iterator[Sample]:
        server = look.observed.server
        for listener, accepted in list(server.accepted.items()):
            yield Sample(labels(listener=listener), value(accepted, server.ended.get(listener, 0)))

    return samples


def _count_partitions(condition: Callable[[Partition], bool]) -> Samples:
    return _one(lambda look: sum(1 for partition in look.observed.partitions if condition(partition)))


def _under_replicated(look: Look) -> int:
    broker_id = look.observed.broker_id
    return sum(
        1
        for topic in look.observed.metadata.image.topics.values()
        for state in topic.partitions
        if state.leader == broker_id and len(state.isr) < len(state.replicas)
    )


def _offline_partitions(look: Look) -> int:
    """Return the number of partitions without a leader, or whose leader cannot serve them because of its disk."""
    observed = look.observed
    leaderless = sum(
        1 for topic in observed.metadata.image.topics.values() for state in topic.partitions if state.leader < 0
    )
    return leaderless + observed.partitions.offline_count


def _leads(partition: Partition) -> bool:
    return partition.is_leader and partition.directory.failure is None


def _directories(value: Callable[[bool], int]) -> Samples:
    def samples(look: Look) -> Iterator[Sample]:
        for directory in look.observed.partitions.directories:
            yield Sample(labels(logDirectory=directory.path), value(directory.failure is not None))

    return samples


def _sync_times(look: Look) -> Iterator[Sample]:
    for directory in look.observed.partitions.directories:
        yield Sample(labels(logDirectory=directory.path), directory.syncs.times)


def _unsynced(look: Look) -> Iterator[Sample]:
    for directory in look.observed.partitions.directories:
        unsynced = sum(log.unsynced_bytes for log in directory)
        yield Sample(labels(logDirectory=directory.path), unsynced)


def _uncleanable(look: Look) -> Iterator[Sample]:
    observed = look.observed
    given_up = observed.cleaner.uncleanable
    by_directory = {directory.path: 0 for directory in observed.partitions.directories}
    for partition in observed.partitions:
        if partition.partition in given_up:
            by_directory[partition.directory.path] += 1
    for path, count in by_directory.items():
        yield Sample(labels(logDirectory=path), count)


def _recopied_percent(look: Look) -> float:
    cleaner = look.observed.cleaner
    return 100 * cleaner.bytes_written / cleaner.bytes_read if cleaner.bytes_read else 0.0


def _since_last_cleaning(look: Look) -> list[Sample]:
    seconds = look.observed.cleaner.seconds_since_last_run
    return [] if seconds is None else [Sample("", int(seconds * 1000))]


def _python_info(look: Look) -> Iterator[Sample]:
    major, minor, patch = platform.python_version_tuple()
    yield Sample(
        labels(
            implementation=platform.python_implementation(),
            major=major,
            minor=minor,
            patchlevel=patch,
            version=platform.python_version(),
        ),
        1,
    )


METRICS: tuple[Metric, ...] = (
    # --- Topics.
    _counter(
        "kafka_server_brokertopicmetrics_messagesin_total",
        "Records that were appended. The sample without a topic label counts all topics, deleted ones included.",
        _traffic(lambda traffic: traffic.records_in),
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_bytesin_total",
        "Bytes of appended record batches, as producers sent them.",
        _traffic(lambda traffic: traffic.bytes_in),
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_bytesout_total",
        "Bytes of record batches in responses to Fetch.",
        _traffic(lambda traffic: traffic.bytes_out),
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_failedproducerequests_total",
        "Batches that were refused for any reason, one per partition of a Produce request. Those for topics "
        "that do not exist count only in the sample without a topic label. Kafka leaves out the reasons that "
        "it expects.",
        _traffic(lambda traffic: traffic.failed_produces),
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_failedfetchrequests_total",
        "Partitions of Fetch requests that were answered with an error, counted like failed produce requests.",
        _traffic(lambda traffic: traffic.failed_fetches),
        "topic",
    ),
    # --- Requests.
    _counter(
        "kafka_network_requestmetrics_requests_total",
        "Received requests, by API and version.",
        _requests,
        "request",
        "version",
    ),
    _counter(
        "kafka_network_requestmetrics_errors_total",
        "Errors in responses, by API and error; a response for many partitions may have many. Kafka also "
        "counts the error NONE.",
        _request_errors,
        "request",
        "error",
    ),
    _histogram(
        "kafka_network_requestmetrics_totaltimems",
        "Milliseconds from the receipt of a request until its response was handed to the connection, "
        "including waits for data (Fetch) or for a sync (Produce). A histogram, where Kafka has quantiles.",
        _request_times,
        "request",
        scale=1000.0,
    ),
    _gauge(
        "kafka_server_socketservermetrics_connection_count",
        "Open client connections.",
        _connections(lambda accepted, ended: accepted - ended),
        "listener",
    ),
    _counter(
        "kafka_server_socketservermetrics_connection_creation_total",
        "Client connections that were accepted, including those that a limit then refused.",
        _connections(lambda accepted, ended: accepted),
        "listener",
    ),
    _counter(
        "kafka_server_socketservermetrics_connection_close_total",
        "Client connections that have ended, on either side.",
        _connections(lambda accepted, ended: ended),
        "listener",
    ),
    _counter(
        "tailrace_connections_refused_total",
        "Connections that the broker closed at once because of max.connections or max.connections.per.ip.",
        _one(lambda look: look.observed.server.refused),
    ),
    _gauge(
        "kafka_network_socketserver_memorypoolused",
        "Bytes of memory that requests being received and responses being sent use; limited by "
        "queued.max.request.bytes.",
        _one(lambda look: look.observed.server.held_bytes),
    ),
    _gauge(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions",
        "Incremental fetch sessions.",
        _one(lambda look: len(look.observed.fetch_sessions)),
    ),
    _gauge(
        "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
        "Partitions in all incremental fetch sessions.",
        _one(lambda look: look.observed.fetch_sessions.partition_count),
    ),
    _counter(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
        "Incremental fetch sessions that silent clients lost to other clients.",
        _one(lambda look: look.observed.fetch_sessions.evictions),
    ),
    # --- Partitions and their replicas.
    _gauge(
        "kafka_server_replicamanager_partitioncount",
        "Partitions with an open replica on this broker.",
        _count_partitions(lambda partition: True),
    ),
    _gauge(
        "kafka_server_replicamanager_leadercount",
        "Partitions that this broker leads.",
        _count_partitions(_leads),
    ),
    _gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Partitions that this broker leads and that have fewer in-sync replicas than replicas.",
        _one(_under_replicated),
    ),
    _gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions that this broker leads and that have fewer in-sync replicas than min.insync.replicas, so "
        "that producers with acks=all are refused.",
        _count_partitions(lambda partition: _leads(partition) and partition.isr_count < partition.min_insync_replicas),
    ),
    _gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Partitions that this broker does not serve because their log directory is offline or their log could "
        "not be opened.",
        _one(lambda look: look.observed.partitions.offline_count),
    ),
    # --- Consumer groups.
    *GROUP_METRICS,
    *TRANSACTION_METRICS,
    # --- The cluster.
    _gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 on the broker that is the controller, 0 on all others; the sum over a cluster is 1.",
        _one(lambda look: int(look.observed.metadata.image.controller_id == look.observed.broker_id)),
    ),
    _gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions of the cluster without a leader, and partitions of this broker that it cannot open or "
        "whose disk failed.",
        _one(_offline_partitions),
    ),
    _gauge(
        "kafka_controller_kafkacontroller_globaltopiccount",
        "Topics of the cluster.",
        _one(lambda look: len(look.observed.metadata.image.topics)),
    ),
    _gauge(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "Partitions of the cluster.",
        _one(lambda look: sum(len(topic.partitions) for topic in look.observed.metadata.image.topics.values())),
    ),
    _gauge(
        "kafka_controller_kafkacontroller_activebrokercount",
        "Live brokers of the cluster.",
        _one(lambda look: len(look.observed.metadata.image.brokers)),
    ),
    _gauge(
        "kafka_server_kafkaserver_brokerstate",
        "State of the broker: 0 not running, 1 starting, 2 recovering its logs, 3 running, 7 stopping.",
        _one(lambda look: int(look.observed.lifecycle.state)),
    ),
    # --- Logs.
    _gauge(
        "kafka_log_log_size",
        "Bytes in the segment files of a partition's log.",
        _partitions(lambda partition: partition.log.segments.size_bytes),
        "topic",
        "partition",
    ),
    _gauge(
        "kafka_log_log_logstartoffset",
        "The first readable offset of a partition.",
        _partitions(lambda partition: partition.log_start_offset),
        "topic",
        "partition",
    ),
    _gauge(
        "kafka_log_log_logendoffset",
        "The offset of a partition's next record.",
        _partitions(lambda partition: partition.log.end_offset),
        "topic",
        "partition",
    ),
    _gauge(
        "kafka_log_log_numlogsegments",
        "Segments of a partition's log.",
        _partitions(lambda partition: partition.log.segments.count),
        "topic",
        "partition",
    ),
    _gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that are offline because their disk failed.",
        _one(lambda look: sum(1 for each in look.observed.partitions.directories if each.failure is not None)),
    ),
    _gauge(
        "kafka_log_logmanager_logdirectoryoffline",
        "1 if a log directory is offline, 0 if it is in use.",
        _directories(int),
        "logDirectory",
    ),
    _gauge(
        "tailrace_log_unsynced_bytes",
        "Bytes that were written to logs and that no sync covers yet.",
        _unsynced,
        "logDirectory",
    ),
    _histogram(
        "tailrace_log_sync_duration_seconds",
        "How long syncs took; one sync may cover many logs. Failed syncs are not included: they take the "
        "directory offline.",
        _sync_times,
        "logDirectory",
    ),
    _gauge(
        "tailrace_log_recovery_duration_seconds",
        "How long the last start took to open the logs and, after a crash, to recover them.",
        _one(lambda look: look.observed.lifecycle.recovery_seconds),
    ),
    # --- Compaction and scrub.
    _gauge(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "The largest share of a compacted log that is new since its last compaction, in percent.",
        _one(lambda look: look.observed.cleaner.max_dirty_percent),
    ),
    _gauge(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "Milliseconds since a log was last compacted; no sample before the first time.",
        _since_last_cleaning,
    ),
    _gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Partitions that are no longer compacted because something in their logs is damaged.",
        _uncleanable,
        "logDirectory",
    ),
    _gauge(
        "kafka_log_logcleaner_cleaner_recopy_percent",
        "Bytes that compaction wrote again, in percent of those that it read since the start.",
        _one(_recopied_percent),
    ),
    _gauge(
        "kafka_log_logcleaner_max_clean_time_secs",
        "The duration of the last compaction of a log, in seconds.",
        _one(lambda look: look.observed.cleaner.last_run_seconds),
    ),
    _counter(
        "tailrace_log_cleaner_runs_total",
        "Compactions of logs.",
        _one(lambda look: look.observed.cleaner.runs),
    ),
    _counter(
        "tailrace_log_cleaner_removed_records_total",
        "Records that compaction removed.",
        _one(lambda look: look.observed.cleaner.records_read - look.observed.cleaner.records_kept),
    ),
    _counter(
        "tailrace_scrub_read_bytes_total",
        "Bytes of closed segments whose checksums were verified in the background.",
        _one(lambda look: look.observed.scrubber.bytes_read),
    ),
    _counter(
        "tailrace_scrub_problems_total",
        "Damaged batches that this check found; what follows them in their segment is not served.",
        _one(lambda look: look.observed.scrubber.problems),
    ),
    *ARCHIVE_METRICS,
    # --- The process.
    _histogram(
        "tailrace_event_loop_lag_seconds",
        "How late the event loop came to a timer, measured twice a second: everything else waits as long.",
        lambda look: [Sample("", look.observed.loop_lag)],
    ),
    _counter(
        "tailrace_loop_slow_steps_total",
        "Steps of the event loop that took more CPU time than tailrace.loop.slow.step.ms; their stacks are logged.",
        lambda look: [Sample("", look.observed.slow_steps())],
    ),
    _gauge(
        "tailrace_build_info",
        "Always 1; the version is in the label.",
        lambda look: [Sample(labels(version=__version__), 1)],
        "version",
    ),
    _counter(
        "process_cpu_seconds_total",
        "User and system CPU time of the process.",
        _process(lambda usage: usage.cpu_seconds),
    ),
    _gauge(
        "process_resident_memory_bytes",
        "Resident memory of the process.",
        _process(lambda usage: usage.resident_bytes),
    ),
    _gauge(
        "process_virtual_memory_bytes",
        "Virtual memory of the process.",
        _process(lambda usage: usage.virtual_bytes),
    ),
    _gauge(
        "process_start_time_seconds",
        "The start time of the process, in seconds since the Unix epoch.",
        _process(lambda usage: usage.start_time),
    ),
    _gauge(
        "process_open_fds",
        "Open file descriptors.",
        _process(lambda usage: usage.open_descriptors),
    ),
    _gauge(
        "process_max_fds",
        "The limit of open file descriptors.",
        _process(lambda usage: usage.max_descriptors),
    ),
    _gauge(
        "python_info",
        "Always 1; the interpreter is in the labels.",
        _python_info,
        "implementation",
        "major",
        "minor",
        "patchlevel",
        "version",
    ),
)
