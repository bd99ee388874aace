"""What AlterConfigs and IncrementalAlterConfigs share: changes to topics, brokers and loggers, in Kafka's words.

A resource changes as a whole or not at all. Each change applies to the configuration that is stored at that moment, and
the result is checked. So of two clients that change different keys at once, neither undoes the other's change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from tailrace.broker import access, loggers
from tailrace.broker.config.broker_config import BROKER_KEYS, TOPIC_KEYS, ConfigType
from tailrace.broker.config.types import ConfigKey, value_text
from tailrace.broker.services import RequestContext, Services
from tailrace.broker.upkeep.archive_access import require_readers
from tailrace.cluster.image import ALL_BROKERS, TopicImage
from tailrace.errors import ConfigError, ErrorCode, KafkaError
from tailrace.model import topic_name_problem
from tailrace.runtime.long_work import ITEMS_PER_SLICE
from tailrace.security.needs import each
from tailrace.security.operations import Operation as Secured
from tailrace.security.operations import ResourceType as SecuredType

logger = logging.getLogger("tailrace.broker")


class ResourceType(IntEnum):
    """What can have a configuration, numbered as in the protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """Operations on a key, numbered as in the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


#: The rights that a client needs to change configurations.
NEEDS = (
    each(Secured.ALTER_CONFIGS, SecuredType.TOPIC),
    each(Secured.ALTER_CONFIGS, SecuredType.GROUP),
    each(Secured.ALTER_CONFIGS, SecuredType.CLUSTER),
)


class KeyChange(NamedTuple):
    """A key, the operation on it, and its new value."""

    name: str
    operation: int
    value: str | None


class ResourceChange(NamedTuple):
    """All changes to one resource; `replaces_all` first drops its present configuration."""

    resource_type: int
    resource_name: str
    keys: Sequence[KeyChange]
    replaces_all: bool


async def make_changes(
    services: Services, context: RequestContext, changes: Sequence[ResourceChange], *, validate_only: bool
) -> list[KafkaError | None]:
    """Make each change, or only check it with `validate_only`; return the errors in the order of the changes."""
    named = Counter((change.resource_type, change.resource_name) for change in changes)
    outcomes: list[KafkaError | None] = []
    for count, change in enumerate(changes, 1):
        if count % ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
        try:
            if named[change.resource_type, change.resource_name] > 1:
                raise _invalid("Each resource must appear at most once.")
            access.require_config(services, context, Secured.ALTER_CONFIGS, change.resource_type, change.resource_name)
            await _make_change(services, context, change, validate_only)
        except KafkaError as error:
            outcomes.append(error)
            continue
        outcomes.append(None)
        if not validate_only:
            _log(context, change)
    return outcomes


async def _make_change(
    services: Services, context: RequestContext, change: ResourceChange, validate_only: bool
) -> None:
    names = [key.name for key in change.keys]
    if len(dict.fromkeys(names)) < len(names):
        raise _invalid("Error due to duplicate config keys")
    without_value = [key.name for key in change.keys if key.value is None and key.operation != Operation.DELETE]
    if without_value:
        raise _invalid(f"Null value not supported for : {', '.join(without_value)}")
    if change.resource_type == ResourceType.TOPIC:
        await _change_topic(services, context, change, validate_only)
    elif change.resource_type == ResourceType.BROKER:
        await _change_broker(services, change, validate_only)
    elif change.resource_type == ResourceType.BROKER_LOGGER and not change.replaces_all:
        _change_loggers(services, change, validate_only)
    else:
        raise _invalid(f"Unknown resource type {change.resource_type}")


# --- topics


async def _change_topic(
    services: Services, context: RequestContext, change: ResourceChange, validate_only: bool
) -> None:
    name = change.resource_name
    if not name:
        raise _invalid("Default topic resources are not allowed.")
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    topic = access.find_topic(services, context, Secured.ALTER_CONFIGS, name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")

    def changed(stored: TopicImage) -> TopicImage:
        configs = _changed_configs(change, stored.configs, TOPIC_KEYS)
        try:
            services.config.validate_topic_overrides(configs)
        except ConfigError as refusal:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(refusal)) from refusal
        if _is_newly_archived(services, stored.configs, configs):
            require_readers(services.metadata.image.brokers.values())
        return replace(stored, configs=MappingProxyType(configs))

    if validate_only:
        changed(topic)
    else:
        await services.metadata.alter_topic(topic, changed)


def _is_newly_archived(services: Services, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """True if a topic gets an archive, or one at another place."""

    def place(configs: Mapping[str, str]) -> str | None:
        try:
            config = services.config.topic_config(configs)
        except ConfigError:
            return None  # another version of tailrace stored it
        return config.archive_uri if config.is_archived else None

    return place(after) not in (None, place(before))


# --- brokers


async def _change_broker(services: Services, change: ResourceChange, validate_only: bool) -> None:
    name = change.resource_name
    if name != ALL_BROKERS:
        number = broker_number(name, "Node id")
        if number != services.broker_id:
            raise _invalid(f"Unexpected broker id, expected {services.broker_id}, but received {name}")
        name = str(number)

    def changed(stored: Mapping[str, str]) -> Mapping[str, str]:
        configs = _changed_configs(change, stored, BROKER_KEYS)
        try:
            services.config.check_dynamic(configs, for_all_brokers=name == ALL_BROKERS)
        except ConfigError as refusal:
            # Kafka answers INVALID_REQUEST, although INVALID_CONFIG would say more (KAFKA-13609).
            raise _invalid(str(refusal)) from refusal
        return configs

    if validate_only:
        changed(services.metadata.image.configs_of(name))
    else:
        await services.metadata.alter_broker_configs(name, changed)


def broker_number(name: str, what: str) -> int:
    """Parse a broker id that a request gives as text."""
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 11):
        raise _invalid(f"{what} must be an integer, but it is: {name}")
    return int(name)


def _changed_configs(
    change: ResourceChange, stored: Mapping[str, str], keys: Mapping[str, ConfigKey]
) -> dict[str, str]:
    """Return the configuration of a resource after a change."""
    configs = {} if change.replaces_all else dict(stored)
    for name, operation, value in change.keys:
        if operation == Operation.DELETE:
            configs.pop(name, None)
        elif operation == Operation.SET:
            configs[name] = value or ""
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            configs[name] = _changed_list(change, Operation(operation), keys.get(name), name, configs.get(name), value)
        else:
            raise _invalid(f"Unknown operations type {operation}")
    return configs


def _changed_list(
    change: ResourceChange,
    operation: Operation,
    key: ConfigKey | None,
    name: str,
    present: str | None,
    value: str | None,
) -> str:
    if key is None or key.type is not ConfigType.LIST:
        if change.resource_type == ResourceType.TOPIC:
            problem = f"Can't {operation.name} to key {name} because its type is not LIST."
        else:
            problem = f"Config value {operation.name.lower()} is not allowed for config key: {name}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
    items = _items(present if present is not None else value_text(key.default))
    wanted = _items(value)
    if operation is Operation.APPEND:
        return ",".join(dict.fromkeys([*items, *wanted]))
    return ",".join(item for item in items if item not in wanted)


def _items(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]


# --- loggers


def _change_loggers(services: Services, change: ResourceChange, validate_only: bool) -> None:
    number = broker_number(change.resource_name, "Node id")
    if number != services.broker_id:
        raise _invalid(f"Unexpected node id. Expected {services.broker_id}, but received {number}")
    for key in change.keys:
        _check_logger(key)
    if not validate_only:
        for name, operation, value in change.keys:
            loggers.set_level(name, None if operation == Operation.DELETE else value)


def _check_logger(key: KeyChange) -> None:
    name, operation, value = key
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        raise _invalid(f"{Operation(operation).name} operation is not allowed for the BROKER_LOGGER resource")
    if operation not in (Operation.SET, Operation.DELETE):
        raise _invalid(f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource")
    if not loggers.logger_exists(name):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.SET and value not in loggers.LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(loggers.LEVELS))}",
        )
    if operation == Operation.DELETE and name == loggers.ROOT:
        raise _invalid(f"Removing the log level of the {loggers.ROOT} logger is not allowed")


def _log(context: RequestContext, change: ResourceChange) -> None:
    """Log the change and the client that made it."""
    kind = ResourceType(change.resource_type).name.lower().replace("_", " ")
    name = change.resource_name
    logger.info(
        "configuration of %s %s by %s at %s: %s",
        f"{kind} {name}" if name else "all brokers",
        "replaced" if change.replaces_all else "changed",
        context.client_id or "an unnamed client",
        context.peer,
        ", ".join(_shown(key) for key in change.keys) or "nothing is set",
        extra={"resource_type": kind, "resource_name": name, "peer": context.peer, "client_id": context.client_id},
    )


def _shown(change: KeyChange) -> str:
    key = BROKER_KEYS.get(change.name)
    value = "[hidden]" if key is not None and key.is_sensitive else change.value
    operation = Operation(change.operation)
    return f"{operation.name.lower()} {change.name}" + ("" if operation is Operation.DELETE else f"={value}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
