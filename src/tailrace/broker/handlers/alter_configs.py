"""AlterConfigs 0 to 2: each resource gets exactly the configuration that is asked for; what is not named is dropped."""

from __future__ import annotations

from tailrace.broker.handlers.api import Api
from tailrace.broker.handlers.config_changes import NEEDS, KeyChange, Operation, ResourceChange, make_changes
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode
from tailrace.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    changes = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [KeyChange(config.name, Operation.SET, config.value) for config in resource.configs],
            replaces_all=True,
        )
        for resource in request.resources
    ]
    outcomes = await make_changes(services, context, changes, validate_only=request.validate_only)
    return AlterConfigsResponse(
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


API = Api(AlterConfigsRequest, 0, 2, handle, "Replace the whole configuration of topics or brokers.", needs=NEEDS)
