"""DescribeCluster 0 to 2: the brokers as seen from the listener of the request; there are no separate controllers.

Odd: a broker without a connection to the metadata store returns its last state without an error code; the error message
says so.
"""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS = 1


def handle(services: Services, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="Only brokers can be described: there is no separate controller endpoint.",
        )
    image = services.metadata.image
    brokers = [
        DescribeClusterBroker(broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in image.reachable_through(context.listener)
    ]
    response = DescribeClusterResponse(cluster_id=image.cluster_id, controller_id=image.controller_id, brokers=brokers)
    if not services.partitions.holds_lease():
        response.error_message = (
            f"Broker {services.broker_id} cannot reach the metadata store and returns its last known state. "
            "Reads, and writes with acks=all, continue where followers still fetch. Writes with acks=0 and "
            "acks=1, and all creations, changes and elections, are refused."
        )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = access.operations_on_cluster(services, context)
    return response


API = Api(
    DescribeClusterRequest,
    0,
    2,
    handle,
    "List the brokers and the controller.",
    needs=(each(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
