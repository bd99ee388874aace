"""The parts of a broker that monitoring reads, and the results of one reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.broker.fetching.archive_reads import ArchiveReads
from tailrace.broker.fetching.sessions import FetchSessions
from tailrace.broker.group_coordinator import GroupCoordinator
from tailrace.broker.lifecycle import Lifecycle
from tailrace.broker.monitoring.counters import Counters
from tailrace.broker.network.server import Server
from tailrace.broker.partitions import Partitions
from tailrace.broker.transaction_coordinator import TransactionCoordinator
from tailrace.broker.upkeep.archive_watch import ArchiveWatch
from tailrace.broker.upkeep.cleaner import Cleaner
from tailrace.broker.upkeep.scrubber import Scrubber
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.runtime.histogram import Histogram
from tailrace.runtime.process import ProcessUsage

#: The buckets of the event loop's lag, in seconds.
_LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class Observed:
    """What metrics and health checks read."""

    broker_id: int
    metadata: ClusterMetadata
    partitions: Partitions
    server: Server
    fetch_sessions: FetchSessions
    cleaner: Cleaner
    scrubber: Scrubber
    counters: Counters
    lifecycle: Lifecycle
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    archive_reads: ArchiveReads
    archive_watch: ArchiveWatch
    #: How late the event loop woke up a task.
    loop_lag: Histogram = field(default_factory=lambda: Histogram(_LAG_BOUNDS))
    #: Returns the resource usage of the process; a simulated broker has none. May block.
    process_usage: Callable[[], ProcessUsage] | None = None
    #: The number of slow steps of the event loop, if they are watched.
    slow_steps: Callable[[], int] = lambda: 0


@dataclass(slots=True)
class Look:
    """One reading of a broker: its live parts, and what had to be collected first."""

    observed: Observed
    usage: ProcessUsage | None
    #: Groups by type and state: computed on first use, as several metrics need it.
    group_states: Counter[tuple[str, str]] | None = None
