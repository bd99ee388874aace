"""ListGroups 0 to 5: the groups that this broker coordinates, by state and type if asked."""

from __future__ import annotations

from tailrace.broker import access
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    sees_all = access.is_allowed_on_cluster(services, context, Operation.DESCRIBE)
    return ListGroupsResponse(
        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if services.groups.is_loading else ErrorCode.NONE,
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.kind,
            )
            for shard in services.groups
            for group in shard.list_groups()
            if (not states or group.state.lower() in states)
            and (not types or group.kind.lower() in types)
            and (
                sees_all or access.is_allowed(services, context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
            )
        ],
    )


API = Api(
    ListGroupsRequest,
    0,
    5,
    handle,
    "List groups, by state and type.",
    needs=(each(Operation.DESCRIBE, ResourceType.GROUP).unless(each(Operation.DESCRIBE, ResourceType.CLUSTER)),),
)
