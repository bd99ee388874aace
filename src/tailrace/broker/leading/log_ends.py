"""Asks brokers for the log ends of replicas while a partition has no leader.

The longest log of the replicas has every record that some of them acknowledged. A broker answers only in the leader
epoch of the question. In an epoch without a leader it follows no one, so its log cannot grow after the answer, whatever
a deposed leader still sends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from tailrace.broker.network.peer import PeerConnection, peer_endpoint
from tailrace.cluster.image import BrokerImage
from tailrace.cluster.leaders import LogEnd
from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

logger = logging.getLogger("tailrace.controller")

_VERSION = 4
#: A replica id that lets the request reach a broker that does not lead.
ANY_REPLICA = -2
#: How long a leader may take to confirm that it leads.
_LEADERS_SECONDS = 2.0
_RETRY_SECONDS = 0.01
#: The interval at which to check whether a silent broker is still alive to the store.
_LOOK_SECONDS = 0.2


class Leaderless(NamedTuple):
    """A partition without a leader, and its live replicas."""

    partition: TopicPartition
    leader_epoch: int
    replicas: tuple[int, ...]


async def ask_log_ends(
    runtime: Runtime,
    listener: str | None,
    brokers: Mapping[int, BrokerImage],
    leaderless: Sequence[Leaderless],
    patience_seconds: float,
    is_alive: Callable[[int], bool],
) -> dict[TopicPartition, dict[int, LogEnd]]:
    """Ask all replicas at once for their log ends.

    A silent replica may have records that no other one has. So it is waited for while it is alive to the store, but
    with a limit, as it may reach the store and nothing else.
    """
    asked: dict[int, dict[TopicPartition, int]] = {}
    for partition, leader_epoch, replicas in leaderless:
        for broker_id in replicas:
            asked.setdefault(broker_id, {})[partition] = leader_epoch
    answers = await asyncio.gather(
        *[
            _ask(runtime, listener, brokers[broker_id], wanted, patience_seconds, is_alive)
            for broker_id, wanted in asked.items()
        ]
    )
    ends: dict[TopicPartition, dict[int, LogEnd]] = {partition: {} for partition, _, _ in leaderless}
    for broker_id, found in zip(asked, answers, strict=True):
        for partition, end in found.items():
            ends[partition][broker_id] = end
    return ends


async def ask_leaders(
    runtime: Runtime,
    listener: str | None,
    brokers: Mapping[int, BrokerImage],
    led: Sequence[tuple[TopicPartition, int, int]],
) -> Collection[TopicPartition]:
    """Return the partitions whose leaders confirm that they lead in the given epoch."""
    asked = [Leaderless(partition, leader_epoch, (leader,)) for partition, leader_epoch, leader in led]
    found = await ask_log_ends(runtime, listener, brokers, asked, _LEADERS_SECONDS, lambda _: True)
    return [partition for partition, ends in found.items() if ends]


async def _ask(
    runtime: Runtime,
    listener: str | None,
    broker: BrokerImage,
    wanted: Mapping[TopicPartition, int],
    patience_seconds: float,
    is_alive: Callable[[int], bool],
) -> dict[TopicPartition, LogEnd]:
    found: dict[TopicPartition, LogEnd] = {}
    asking = asyncio.ensure_future(_ask_until_told(runtime, listener, broker, wanted, found))
    error: BaseException | None = None
    try:
        async with asyncio.timeout(patience_seconds):
            while not asking.done() and is_alive(broker.broker_id):
                await asyncio.wait([asking], timeout=_LOOK_SECONDS)
        if asking.done():
            error = asking.exception()
    except TimeoutError:
        pass
    finally:
        asking.cancel()
    if error is not None and not isinstance(error, OSError):
        raise error
    if len(found) < len(wanted):
        logger.warning(
            "broker %d did not report its log ends: electing leaders of %d partitions without it: %s",
            broker.broker_id,
            len(wanted) - len(found),
            error or "no answer in time",
        )
    return found


async def _ask_until_told(
    runtime: Runtime,
    listener: str | None,
    broker: BrokerImage,
    wanted: Mapping[TopicPartition, int],
    found: dict[TopicPartition, LogEnd],
) -> None:
    """Ask one broker until it has answered for every partition; OSError if no process listens at its address."""
    waiting = dict(wanted)
    endpoint = peer_endpoint(broker, listener)
    name = f"election asks broker {broker.broker_id}"
    while waiting:
        connection: PeerConnection | None = None
        try:
            connection = await PeerConnection.connect(runtime.network, endpoint.host, endpoint.port, name)
            while waiting:
                response = await connection.call(_request(waiting), _VERSION, OffsetForLeaderEpochResponse)
                waiting = _take(response, waiting, found)
                if waiting:
                    await asyncio.sleep(_RETRY_SECONDS)
        except ConnectionRefusedError:
            raise
        except OSError as error:
            # A lost connection says nothing about the broker: it counts as silent.
            logger.info("lost the connection on which an election asks broker %d: %s", broker.broker_id, error)
            await asyncio.sleep(_LOOK_SECONDS)
        finally:
            if connection is not None:
                connection.close()


def _request(waiting: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, OffsetForLeaderTopic] = {}
    for (name, number), epoch in waiting.items():
        topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name, partitions=[]))
        topic.partitions.append(
            OffsetForLeaderPartition(partition=number, current_leader_epoch=epoch, leader_epoch=epoch)
        )
    return OffsetForLeaderEpochRequest(replica_id=ANY_REPLICA, topics=list(topics.values()))


def _take(
    response: OffsetForLeaderEpochResponse,
    waiting: Mapping[TopicPartition, int],
    found: dict[TopicPartition, LogEnd],
) -> dict[TopicPartition, int]:
    """Record the answers; return what to ask again, because the broker does not know the epoch yet."""
    later: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for result in topic.partitions:
            partition = TopicPartition(topic.topic, result.partition)
            if partition not in waiting:
                continue  # not asked for
            if result.error_code == ErrorCode.NONE:
                found[partition] = LogEnd(result.leader_epoch, result.end_offset)
            elif result.error_code in (ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.REPLICA_NOT_AVAILABLE):
                later[partition] = waiting[partition]
    return later
