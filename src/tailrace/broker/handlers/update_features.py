"""UpdateFeatures 0 to 2: other levels for features of the cluster, or only whether they could be. All or none.

Odd: a downgrade also rewrites the topics that older releases could not read, and does so again when it is repeated, so
that one that was interrupted can be finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.broker.events import log_change
from tailrace.broker.handlers.api import Api, refuse_with
from tailrace.broker.services import RequestContext, Services
from tailrace.cluster.features import FeatureUpdate, SupportedFeatures, UpgradeType, updated
from tailrace.cluster.store import Unavailable
from tailrace.errors import ErrorCode, KafkaError
from tailrace.security.needs import whole
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


async def handle(services: Services, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    try:
        updates = [_update(each, context.version) for each in request.feature_updates]
        if len({update.name for update in updates}) < len(updates):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A feature is in the request more than once.")
        await _apply(services, context, updates, request.validate_only)
    except KafkaError as error:
        reason = f"The update failed for all features since the following feature had an error: {error.message}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=reason)
    results = [UpdatableFeatureResult(feature=update.name, error_message=None) for update in updates]
    return UpdateFeaturesResponse(error_message=None, results=results)


def _update(key: FeatureUpdateKey, version: int) -> FeatureUpdate:
    if version == 0:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if key.allow_downgrade else UpgradeType.UPGRADE
        return FeatureUpdate(key.feature, key.max_version_level, upgrade_type)
    try:
        return FeatureUpdate(key.feature, key.max_version_level, UpgradeType(key.upgrade_type))
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {key.max_version_level} for feature {key.feature}. The controller does not "
            "support the given upgrade type.",
        ) from None


async def _apply(
    services: Services, context: RequestContext, updates: Sequence[FeatureUpdate], validate_only: bool
) -> None:
    metadata = services.metadata
    brokers = await _supported(services)
    is_downgrade = any(update.upgrade_type is not UpgradeType.UPGRADE for update in updates)
    may_lose = any(update.upgrade_type is UpgradeType.UNSAFE_DOWNGRADE for update in updates)
    if is_downgrade:
        _check_no_topic_is_renamed(services)
    if is_downgrade and not may_lose:
        _check_nothing_is_lost(services)
    if validate_only:
        updated(metadata.image.features, updates, brokers)
        return
    before = metadata.image.features
    await metadata.alter_features(lambda finalized: updated(finalized, updates, brokers))
    rewritten = await _rewrite_topics(services, may_lose) if is_downgrade else 0
    after = metadata.image.features
    if after != before or rewritten:
        levels = ", ".join(f"{update.name}={update.level}" for update in updates)
        log_change(
            context,
            "finalized features %s in epoch %d%s",
            levels,
            after.epoch,
            f", and stored {rewritten} topics in the older format" if rewritten else "",
            features=levels,
            epoch=after.epoch,
        )


async def _rewrite_topics(services: Services, may_lose: bool) -> int:
    try:
        return await services.metadata.rewrite_topics(may_lose_fields=may_lose)
    except KafkaError as error:
        raise KafkaError(
            ErrorCode.FEATURE_UPDATE_FAILED,
            "The level is finalized, but some topics are still stored in a format that older releases cannot read: "
            f"repeat the downgrade. {error.message}",
        ) from error


async def _supported(services: Services) -> Mapping[int, SupportedFeatures]:
    """What each registered broker supports, and this one in any case."""
    try:
        brokers = await services.metadata.registered_brokers()
    except Unavailable as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
    registered = {broker_id: broker.features for broker_id, broker in brokers.items()}
    return {**registered, services.broker_id: services.metadata.supported}


def _check_no_topic_is_renamed(services: Services) -> None:
    for topic in services.metadata.topics:
        if topic.is_renamed:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Refusing to perform the requested downgrade because topic {topic.name} has another id than at first: "
                "older releases would take it for another topic and remove its records.",
            )


def _check_nothing_is_lost(services: Services) -> None:
    for topic in services.metadata.topics:
        if topic.needs_names:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Refusing to perform the requested downgrade because it might delete metadata information: topic "
                f"{topic.name} has fields that older releases do not know.",
            )


API = Api(
    UpdateFeaturesRequest,
    0,
    2,
    handle,
    "Change the finalized levels of the cluster's features.",
    needs=(whole(Operation.ALTER, ResourceType.CLUSTER),),
    refuse=refuse_with(UpdateFeaturesResponse),
)
