"""Configuration of topics and brokers: values, their sources, and changes.

Owns the calls and the values they return; must not know how they are printed. Sends its own requests, because
librdkafka cannot name the configuration that all brokers share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.client.connection import DEFAULT_BOOTSTRAP
from tailrace.client.errors import ClientError, UnknownTopicError
from tailrace.client.request import ask
from tailrace.errors import ErrorCode
from tailrace.protocol_client.settings import join_address
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tailrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_DESCRIBE = Versions(1, 4)
_ALTER = Versions(0, 1)
_CLUSTER = Versions(0, 0)
_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1
_SOURCES = {1: "topic", 2: "broker", 3: "broker-default", 4: "static", 5: "default"}
_READ_ONLY = "Cannot update these configs dynamically"


@dataclass(frozen=True, slots=True)
class ConfigOwner:
    """A topic, a broker, or all brokers together."""

    resource_type: int
    resource_name: str

    @classmethod
    def topic(cls, name: str) -> ConfigOwner:
        return cls(_TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigOwner:
        return cls(_BROKER, str(broker_id))

    @classmethod
    def all_brokers(cls) -> ConfigOwner:
        return cls(_BROKER, "")

    def __str__(self) -> str:
        if self.resource_type == _TOPIC:
            return f"topic '{self.resource_name}'"
        return f"broker {self.resource_name}" if self.resource_name else "all brokers"


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The value of a key, and its source: topic, broker, broker-default, static or default."""

    name: str
    value: str | None
    source: str
    is_read_only: bool


class Configs:
    """The configuration of the cluster behind a bootstrap address."""

    def __init__(self, bootstrap: str = DEFAULT_BOOTSTRAP) -> None:
        self._bootstrap = bootstrap

    def get(self, owner: ConfigOwner) -> Sequence[ConfigValue]:
        """Return every key of a topic or broker, sorted by name; for all brokers, only the keys set for them."""
        doing = f"reading the configuration of {owner}"
        resource = DescribeConfigsResource(
            resource_type=owner.resource_type, resource_name=owner.resource_name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource])
        response = ask(self._address_of(owner), request, _DESCRIBE, DescribeConfigsResponse, doing=doing)
        (result,) = response.results
        _check(result.error_code, result.error_message, owner, doing)
        return [
            ConfigValue(config.name, config.value, _SOURCES.get(config.config_source, "unknown"), config.read_only)
            for config in sorted(result.configs, key=lambda config: config.name)
        ]

    def change(self, owner: ConfigOwner, *, to: Mapping[str, str] | None = None, delete: Sequence[str] = ()) -> None:
        """Set some keys and reset others to their defaults; all changes are made, or none."""
        doing = f"changing the configuration of {owner}"
        changes = [AlterableConfig(name=name, config_operation=_SET, value=value) for name, value in (to or {}).items()]
        changes += [AlterableConfig(name=name, config_operation=_DELETE, value=None) for name in delete]
        resource = AlterConfigsResource(
            resource_type=owner.resource_type, resource_name=owner.resource_name, configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = ask(self._address_of(owner), request, _ALTER, IncrementalAlterConfigsResponse, doing=doing)
        (result,) = response.responses
        _check(result.error_code, result.error_message, owner, doing)

    def _address_of(self, owner: ConfigOwner) -> str:
        """Return the broker to ask: each broker answers for itself only; otherwise any of them does."""
        if owner.resource_type != _BROKER or not owner.resource_name:
            return self._bootstrap
        cluster = ask(
            self._bootstrap, DescribeClusterRequest(), _CLUSTER, DescribeClusterResponse, doing=f"looking for {owner}"
        )
        for broker in cluster.brokers:
            if str(broker.broker_id) == owner.resource_name:
                return join_address((broker.host, broker.port))
        known = ", ".join(str(broker.broker_id) for broker in cluster.brokers)
        raise ClientError(f"the cluster has no broker {owner.resource_name}; the brokers are: {known}")


def _check(code: int, message: str | None, owner: ConfigOwner, doing: str) -> None:
    if code == ErrorCode.NONE:
        return
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and owner.resource_type == _TOPIC:
        raise UnknownTopicError(
            f"topic '{owner.resource_name}' does not exist; list all topics with: tailrace topic list"
        )
    name = ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"
    advice = ""
    if message is not None and message.startswith(_READ_ONLY):
        advice = "; they are only read when a broker starts: set them in its --config file or with tailrace serve --set"
    raise ClientError(f"{doing} failed: {message or name}{advice}")
