"""DescribeCluster 0 to 2: brokers as seen from the listener that was asked. Controllers are not to be asked apart.

Odd: a broker that is cut off from the metadata store tells what it knew last, without an error; the message says so.
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
            f"Broker {services.broker_id} does not reach the metadata store and tells what it knew. Reads, and writes "
            "with acks=all, go on where followers still fetch; acks=0 and acks=1 are refused, and nothing can be "
            "created, changed or elected."
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
