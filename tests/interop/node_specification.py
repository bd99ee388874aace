"""What holds for both Node clients beyond the common specification: administration, refusals, idempotence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.conftest import Broker, MakeBroker
from tests.interop.specification import ClientSpecification
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.node_client import NodeBridge, NodeClient
from tests.support.records import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    MESSAGE_TOO_LARGE,
    OFFSET_OUT_OF_RANGE,
    Record,
    RefusedError,
    contents,
)
from tests.support.topics import create_topic, topic_names

#: A run of an idempotent producer across a restart: the broker stops when this many records are acknowledged …
ANNOUNCE_AT = 3_000
#: … and these are sent only after its return.
HOLD_FROM = 9_000
COUNT = 12_000
PARTITIONS = 3


class NodeSpecification(ClientSpecification):
    """Subclassed by the test file of each Node client, which provides the fixture `bridge`."""

    #: Whether the client can send a header without a value.
    sends_null_headers = True

    @pytest.fixture
    def bridge(self) -> NodeBridge:
        raise NotImplementedError

    @pytest.fixture
    def connect(self, bridge: NodeBridge) -> Callable[[Broker], NodeClient]:
        return lambda broker: NodeClient(broker.bootstrap, bridge)

    @pytest.fixture
    def node(self, broker: Broker, bridge: NodeBridge) -> NodeClient:
        return NodeClient(broker.bootstrap, bridge)

    def test_a_topic_is_created_listed_described_and_deleted(
        self, node: NodeClient, topic_name: Callable[[], str]
    ) -> None:
        name = topic_name()
        node.call("create", topic=name, partitions=3, configs={"retention.ms": "3600000"})
        assert name in node.call("list")
        described = node.call("describe", topic=name)
        assert [one["partition"] for one in described["partitions"]] == [0, 1, 2]
        (leader,) = {one["leader"] for one in described["partitions"]}
        assert all(one["replicas"] == one["isr"] == [leader] for one in described["partitions"])
        assert described["configs"]["retention.ms"] == "3600000"
        assert described["configs"]["max.message.bytes"] == "1048588"
        only = node.call("describe", topic=name, names=["retention.ms"])
        assert only["configs"] == {"retention.ms": "3600000"}
        node.call("delete", topic=name)
        assert name not in node.call("list")

    def test_the_cluster_is_described(self, node: NodeClient) -> None:
        cluster = node.call("describe_cluster")
        ((number, address),) = cluster["brokers"]
        assert address == node.bootstrap
        assert cluster["controller"] == number
        assert cluster["clusterId"]

    @pytest.mark.parametrize(
        "configs", [{"no.such.key": "1"}, {"retention.ms": "soon"}], ids=["config-name", "config-value"]
    )
    def test_a_topic_with_an_invalid_configuration_is_refused(
        self, node: NodeClient, topic_name: Callable[[], str], configs: dict[str, str]
    ) -> None:
        name = topic_name()
        with pytest.raises(RefusedError) as refused:
            node.call("create", topic=name, partitions=1, configs=configs)
        assert refused.value.code == INVALID_CONFIG
        assert name not in topic_names(node.bootstrap)

    def test_configuration_is_changed_and_an_invalid_change_is_refused(
        self, node: NodeClient, topic_name: Callable[[], str]
    ) -> None:
        topic = create_topic(node.bootstrap, topic_name(), retention_ms="3600000")
        node.call("alter_configs", topic=topic, configs={"max.message.bytes": "2000"}, validate_only=True)
        assert node.call("describe", topic=topic)["configs"]["max.message.bytes"] == "1048588"
        node.call("alter_configs", topic=topic, configs={"max.message.bytes": "2000"}, validate_only=False)
        configs = node.call("describe", topic=topic)["configs"]
        # AlterConfigs replaces the whole configuration: keys that it does not name return to their defaults.
        assert configs["max.message.bytes"] == "2000"
        assert configs["retention.ms"] != "3600000"
        with pytest.raises(RefusedError) as refused:
            node.produce(topic, [Record(b"x" * 3000)])
        assert refused.value.code == MESSAGE_TOO_LARGE
        with pytest.raises(RefusedError) as refused:
            node.call("alter_configs", topic=topic, configs={"retention.ms": "soon"}, validate_only=False)
        assert refused.value.code == INVALID_CONFIG
        assert node.call("describe", topic=topic)["configs"]["max.message.bytes"] == "2000"

    def test_partitions_are_added_and_never_taken_away(self, node: NodeClient, topic_name: Callable[[], str]) -> None:
        topic = create_topic(node.bootstrap, topic_name(), partitions=2)
        node.call("create_partitions", topic=topic, count=4, validate_only=True)
        assert len(node.call("describe", topic=topic)["partitions"]) == 2
        node.call("create_partitions", topic=topic, count=4, validate_only=False)
        assert len(node.call("describe", topic=topic)["partitions"]) == 4
        node.produce(topic, [Record(b"in the new one", partition=3)])
        assert [one.value for one in node.consume(topic, 3, 1)] == [b"in the new one"]
        with pytest.raises(RefusedError) as refused:
            node.call("create_partitions", topic=topic, count=3, validate_only=False)
        assert refused.value.code == INVALID_PARTITIONS

    def test_records_are_deleted_up_to_an_offset(self, node: NodeClient, topic_name: Callable[[], str]) -> None:
        topic = create_topic(node.bootstrap, topic_name())
        node.produce(topic, [Record(b"%d" % number) for number in range(10)])
        node.call("delete_records", topic=topic, partition=0, offset=4)
        assert node.offsets(topic, [0]) == {0: (4, 10)}
        assert [one.value for one in node.consume(topic, 0, 6, start=4)] == [b"%d" % number for number in range(4, 10)]
        with pytest.raises(RefusedError) as refused:
            node.call("delete_records", topic=topic, partition=0, offset=11, patience_ms=1000)
        assert refused.value.code == OFFSET_OUT_OF_RANGE
        assert node.offsets(topic, [0]) == {0: (4, 10)}

    def test_an_offset_beyond_the_end_is_reported(self, node: NodeClient, topic_name: Callable[[], str]) -> None:
        topic = create_topic(node.bootstrap, topic_name())
        node.produce(topic, [Record(b"only")])
        with pytest.raises(RefusedError) as refused:
            node.call(
                "consume",
                topic=topic,
                partition=0,
                start=1000,
                count=1,
                max_wait_ms=100,
                timeout_seconds=120,
                patience_ms=1000,
            )
        assert refused.value.code == OFFSET_OUT_OF_RANGE

    def test_headers_may_be_null_and_bytes_may_be_anything(
        self, node: NodeClient, topic_name: Callable[[], str]
    ) -> None:
        topic = create_topic(node.bootstrap, topic_name())
        every_byte = bytes(range(256))
        full = Record(every_byte, every_byte, (("empty", b""), ("raw", every_byte)))
        with_null = full._replace(headers=(("null", None), *full.headers))
        other = ConfluentClient(node.bootstrap)
        node.produce(topic, [full])
        (node if self.sends_null_headers else other).produce(topic, [with_null])
        assert [one.content() for one in node.consume(topic, 0, 2)] == contents([full, with_null])
        assert [one.content() for one in other.consume(topic, 0, 2)] == contents([full, with_null])

    def test_an_idempotent_producer_numbers_its_batches(self, node: NodeClient, topic_name: Callable[[], str]) -> None:
        topic = create_topic(node.bootstrap, topic_name(), partitions=2)
        records = [Record(b"%d" % number, partition=number % 2) for number in range(20)]
        positions = node.produce(topic, records, idempotent=True, compression="gzip")
        assert positions == [(number % 2, number // 2) for number in range(20)]
        assert node.offsets(topic, [0, 1]) == {0: (0, 10), 1: (0, 10)}

    @pytest.mark.parametrize("way", ["stopped", "killed"])
    def test_an_idempotent_producer_survives_a_broker_that_is(
        self, way: str, bridge: NodeBridge, make_broker: MakeBroker, topic_name: Callable[[], str]
    ) -> None:
        broker: BrokerProcess = make_broker()
        topic = create_topic(broker.bootstrap, topic_name(), partitions=PARTITIONS)

        def come_back() -> None:
            (broker.stop if way == "stopped" else broker.kill)()
            broker.start()

        acknowledged = NodeClient(broker.bootstrap, bridge).produce_numbered(
            topic,
            count=COUNT,
            partitions=PARTITIONS,
            batch=30,
            announce_at=ANNOUNCE_AT,
            hold_from=HOLD_FROM,
            while_held=come_back,
        )
        assert acknowledged == COUNT
        reader = ConfluentClient(broker.bootstrap)
        for partition, (first, end) in reader.offsets(topic, range(PARTITIONS)).items():
            expected = list(range(partition, COUNT, PARTITIONS))
            assert (first, end) == (0, len(expected))
            assert [int(one.value or b"-1") for one in reader.consume(topic, partition, end)] == expected
