"""ReplicaStart 0: where the leader's own log starts, and the epochs and producers from before that.

Odd: followers learn producers with records in the leader's log from those records; the response has all others.
"""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api, refuse_with
from tailrace.broker.peer_identity import require_broker
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import KafkaError
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.replica_start import EpochStart, ReplicaStartRequest, ReplicaStartResponse


def handle(services: Services, context: RequestContext, request: ReplicaStartRequest) -> ReplicaStartResponse:
    try:
        require_broker(services, context)
        partition = access.find_partition_by_lineage(services, context, None, request.lineage, request.partition_index)
        partition.require_leader(request.current_leader_epoch, by_replica=True)
    except KafkaError as error:
        return ReplicaStartResponse(error_code=error.code)
    log = partition.log
    start_offset = log.start_offset
    return ReplicaStartResponse(
        start_offset=start_offset,
        leader_epochs=[
            EpochStart(epoch=epoch, start_offset=start)
            for epoch, start in log.leader_epochs.entries
            if start < start_offset
        ],
        producers=log.producers.before(start_offset).snapshot(),
    )


API = Api(
    ReplicaStartRequest,
    0,
    0,
    handle,
    "tailrace only, between brokers: ask where a follower begins. Not advertised.",
    needs=(whole(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
    refuse=refuse_with(ReplicaStartResponse),
)
