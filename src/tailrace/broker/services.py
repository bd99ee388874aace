"""What handlers work with: the parts of one broker, and the context of the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.fetching.archive_reads import ArchiveReads
from tailrace.broker.fetching.sessions import FetchSessions
from tailrace.broker.group_coordinator import GroupCoordinator
from tailrace.broker.leading.leadership import Leadership
from tailrace.broker.metadata_cache import MetadataCache
from tailrace.broker.monitoring.counters import Counters
from tailrace.broker.network.broker_identity import BrokerIdentity
from tailrace.broker.network.request_memory import RequestMemory
from tailrace.broker.partitions import Partitions
from tailrace.broker.producer_ids import ProducerIds
from tailrace.broker.transaction_coordinator import TransactionCoordinator
from tailrace.broker.transactional_appends import TransactionalAppends
from tailrace.broker.upkeep.archive_access import ArchiveAccess
from tailrace.cluster.broker_proof import Challenge
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.coordinator.coordinators import Coordinators
from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import Disk
from tailrace.runtime.outcome import Outcome
from tailrace.security.authorizer import Authorizer
from tailrace.security.principals import ANONYMOUS, Principal
from tailrace.security.quotas import Quotas


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a handler may use."""

    broker_id: int
    config: BrokerConfig
    clock: Clock
    disk: Disk
    metadata: ClusterMetadata
    partitions: Partitions
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    metadata_cache: MetadataCache
    coordinators: Coordinators
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    transactional_appends: TransactionalAppends
    leadership: Leadership
    archive_reads: ArchiveReads
    archive_access: ArchiveAccess
    identity: BrokerIdentity
    counters: Counters = field(default_factory=Counters, kw_only=True)
    request_memory: RequestMemory = field(default_factory=RequestMemory, kw_only=True)
    #: If None, every client may do everything.
    authorizer: Authorizer | None = field(default=None, kw_only=True)
    #: If None, no client is throttled.
    quotas: Quotas | None = field(default=None, kw_only=True)


class ProvingConnection(Protocol):
    """A connection whose peer may prove that it is a broker."""

    #: The broker and epoch that the peer has proved to be; None if it has not.
    peer_broker: int | None
    peer_epoch: int
    #: The challenge that the peer was sent.
    challenge: Challenge | None

    def proved(self, broker_id: int, epoch: int) -> None:
        """Note which broker the peer has proved to be."""
        ...


class RequestContext(NamedTuple):
    """The client of a request, its version and its listener."""

    version: int
    client_id: str | None
    listener: str
    peer: str
    #: Closes the connection without a response, for clients that want none (acks=0) but must learn of an error.
    disconnect: Callable[[], None]
    principal: Principal = ANONYMOUS
    #: The connection on which the peer proves its identity.
    connection: ProvingConnection | None = None
    #: The broker that the peer has proved to be.
    peer_broker: int | None = None

    @property
    def host(self) -> str:
        """The client's address, as Kafka shows it."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")


class Later(NamedTuple):
    """A response that waits for an outcome, where a task would cost more than the response."""

    done: Outcome[Any]
    #: Makes the response from the outcome.
    finish: Callable[[Outcome[Any]], Any]
