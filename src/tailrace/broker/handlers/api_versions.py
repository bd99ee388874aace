"""ApiVersions: what this broker serves. A newer request version gets a version 0 response with UNSUPPORTED_VERSION."""

from __future__ import annotations

from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode
from tailrace.security.needs import NOTHING
from tailrace.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

#: API key, lowest and highest version; filled from the table of handlers.
TABLE: list[tuple[int, int, int]] = []


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= 3 and not _is_sound_name(request.client_software_name, request.client_software_version):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    response = _response(ErrorCode.NONE)
    finalized = services.metadata.image.features
    response.supported_features = [
        SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in services.metadata.supported.items()
    ]
    response.finalized_features_epoch = finalized.epoch
    response.finalized_features = [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in finalized.levels.items()
    ]
    return response


def unsupported_version() -> ApiVersionsResponse:
    """Return the response to a version that this broker does not know; encode it in version 0."""
    return _response(ErrorCode.UNSUPPORTED_VERSION)


def _response(error: ErrorCode) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in TABLE],
    )


def _is_sound_name(*names: str) -> bool:
    """KIP-511: letters and digits, with dots and dashes in between."""
    return all(
        name and name[0].isalnum() and name[-1].isalnum() and name.replace("-", "").replace(".", "").isalnum()
        for name in names
    )


API = Api(
    ApiVersionsRequest,
    0,
    4,
    handle,
    "List the advertised APIs and versions, and the features of the cluster.",
    needs=NOTHING,
)
