"""IncrementalAlterConfigs 0 and 1: sets, deletes, appends to or subtracts from single keys; the others stay."""

from __future__ import annotations

from tailrace.broker.handlers.api import Api
from tailrace.broker.handlers.config_changes import NEEDS, KeyChange, ResourceChange, make_changes
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode
from tailrace.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    changes = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [KeyChange(config.name, config.config_operation, config.value) for config in resource.configs],
            replaces_all=False,
        )
        for resource in request.resources
    ]
    outcomes = await make_changes(services, context, changes, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if refusal is None else refusal.code,
                error_message=None if refusal is None else refusal.message,
                resource_type=change.resource_type,
                resource_name=change.resource_name,
            )
            for change, refusal in zip(changes, outcomes, strict=True)
        ]
    )


API = Api(
    IncrementalAlterConfigsRequest,
    0,
    1,
    handle,
    "Change single keys of topics and brokers, and levels of loggers, while the broker runs.",
    needs=NEEDS,
)
