"""ListConfigResources 0 and 1: the resources that can have a configuration; no client metrics or groups have one."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api, refuse_with
from tailrace.broker.handlers.config_changes import ResourceType
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode
from tailrace.security.needs import whole
from tailrace.security.operations import Operation
from tailrace.security.operations import ResourceType as Secured
from tailrace.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    supported = [ResourceType.CLIENT_METRICS] if context.version == 0 else list(ResourceType)
    wanted = request.resource_types or supported
    if any(number not in supported for number in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = services.metadata.image
    brokers = [str(broker.broker_id) for broker, _ in image.reachable_through(context.listener)]
    names = {
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.BROKER: brokers,
        # As in Kafka, DESCRIBE_CONFIGS on the cluster is enough to see every topic.
        ResourceType.TOPIC: [topic.name for topic in access.visible_topics(services, context, image, None)],
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind, of_kind in names.items()
            if kind in wanted
            for name in of_kind
        ]
    )


API = Api(
    ListConfigResourcesRequest,
    0,
    1,
    handle,
    "List what can have a configuration. Version 0 asks for client metrics; there are none.",
    needs=(whole(Operation.DESCRIBE_CONFIGS, Secured.CLUSTER),),
    refuse=refuse_with(ListConfigResourcesResponse),
)
