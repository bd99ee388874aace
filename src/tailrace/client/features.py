"""Features of the cluster: what the broker supports, and the finalized levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace import __version__
from tailrace.client.errors import ClientError
from tailrace.client.request import ask
from tailrace.errors import ErrorCode
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

_API_VERSIONS = Versions(3, 3)
_UPDATE = Versions(1, 1)
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class FeatureState:
    """A feature: the levels that the broker supports, and the finalized level of the cluster."""

    name: str
    #: None if the broker does not support the feature at all.
    lowest: int | None
    highest: int | None
    #: None if it is not finalized.
    level: int | None


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a cluster as one of its brokers reports them."""

    #: The number of changes of the levels so far.
    epoch: int
    features: Sequence[FeatureState]


def describe_features(bootstrap: str) -> Features:
    """Describe the features of the cluster behind a bootstrap address."""
    request = ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__.split("+")[0])
    doing = "describing features"
    response = ask(bootstrap, request, _API_VERSIONS, ApiVersionsResponse, doing=doing)
    if response.error_code:
        raise ClientError(f"{doing} failed: {ErrorCode(response.error_code).name}")
    supported = {each.name: each for each in response.supported_features}
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    states = [
        FeatureState(
            name,
            supported[name].min_version if name in supported else None,
            supported[name].max_version if name in supported else None,
            levels.get(name),
        )
        for name in sorted({**supported, **levels})
    ]
    return Features(response.finalized_features_epoch, states)


def update_feature(
    bootstrap: str, name: str, level: int, *, downgrade: bool = False, unsafe: bool = False, dry_run: bool = False
) -> None:
    """Finalize a level, or only check whether that is possible; ClientError if it is not."""
    upgrade_type = (_UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE) if downgrade else _UPGRADE
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
    request = UpdateFeaturesRequest(feature_updates=[update], validate_only=dry_run)
    doing = f"the {'downgrade' if downgrade else 'upgrade'} to {name}={level}"
    response = ask(bootstrap, request, _UPDATE, UpdateFeaturesResponse, doing=doing)
    problems = [(response.error_code, response.error_message)]
    problems += [(each.error_code, each.error_message) for each in response.results]
    for code, message in problems:
        if code:
            # The broker's reason follows Kafka's statement that nothing of the request was done.
            reason = (message or ErrorCode(code).name).rpartition(" had an error: ")[2]
            raise ClientError(f"{doing} failed: {reason}")
