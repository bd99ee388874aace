"""Produce on a partition with several replicas: answered when as many have the records as acks asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tailrace.cluster.image import PartitionState
from tailrace.errors import ErrorCode
from tailrace.replication.partition import Partition
from tests.unit.broker.brokers import TestedBroker, produce_request, with_broker


class Led:
    """A partition that the broker leads, with followers that a test speaks for."""

    def __init__(self, broker: TestedBroker) -> None:
        self.broker = broker
        self.partition: Partition = broker.broker.partitions.find("orders", 0)
        self.me = self.partition.leader_id
        self.epoch = self.partition.leader_epoch
        self.others = (self.me + 1, self.me + 2)
        self.image(isr=(self.me, *self.others))

    def image(self, isr: tuple[int, ...], leader: int | None = None) -> None:
        if leader is not None:
            self.epoch += 1
        leader = self.me if leader is None else leader
        state = PartitionState((self.me, *self.others), isr, leader, self.epoch)
        self.partition.apply_state(state, dict.fromkeys(state.replicas, 1), 0.0)

    def confirm(self, count: int = 2) -> None:
        for follower in self.others[:count]:
            self.partition.leading.follower_fetched(follower, 1, self.partition.log.end_offset, 0, 0.0)

    def send(self, acks: int) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self.broker.produce(acks=acks))


def led(path: Path, test: Callable[[Led], Coroutine[Any, Any, None]], **configs: str) -> None:
    async def run(broker: TestedBroker) -> None:
        await broker.create("orders", **configs)
        await test(Led(broker))

    with_broker(path, run)


@pytest.mark.parametrize(("acks", "followers"), [(1, 0), (2, 1), (3, 2), (-1, 2)])
def test_the_answer_comes_with_the_replica_that_completes_the_number(tmp_path: Path, acks: int, followers: int) -> None:
    async def test(led: Led) -> None:
        answer = led.send(acks)
        for count in range(3):
            for _ in range(10):
                await asyncio.sleep(0)
            assert answer.done() is (count >= followers)
            if count < 2:
                led.partition.leading.follower_fetched(led.others[count], 1, 1, 0, 0.0)
        result = await answer
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)

    led(tmp_path, test)


@pytest.mark.parametrize(
    ("acks", "code"),
    [(-2, ErrorCode.INVALID_REQUIRED_ACKS), (4, ErrorCode.INVALID_REQUIRED_ACKS), (3, ErrorCode.NOT_ENOUGH_REPLICAS)],
)
def test_a_number_of_replicas_that_there_are_not_is_refused(tmp_path: Path, acks: int, code: ErrorCode) -> None:
    async def test(led: Led) -> None:
        led.image(isr=(led.me, led.others[0]))
        result = await led.broker.produce(acks=acks)
        assert (result.error_code, result.base_offset, led.partition.log.end_offset) == (code, -1, 0)
        assert result.error_message is not None
        assert f"{acks}" in result.error_message

    led(tmp_path, test)


def test_an_isr_below_the_minimum_refuses_before_and_after_the_append(tmp_path: Path) -> None:
    async def test(led: Led) -> None:
        answer = led.send(-1)
        await asyncio.sleep(0)
        led.image(isr=(led.me,))
        result = await answer
        assert (result.error_code, result.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)
        assert "min.isr requirement of 2" in (result.error_message or "")
        result = await led.broker.produce(acks=-1)
        assert (result.error_code, led.partition.log.end_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, 1)
        assert (await led.broker.produce(acks=1)).error_code == ErrorCode.NONE

    led(tmp_path, test, min_insync_replicas="2")


def test_a_producer_that_waits_when_leadership_moves_is_told(tmp_path: Path) -> None:
    async def test(led: Led) -> None:
        answers = [led.send(acks) for acks in (-1, 2)]
        await asyncio.sleep(0)
        led.image(isr=led.others, leader=led.others[0])
        for answer in answers:
            assert (await answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await led.broker.produce(acks=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    led(tmp_path, test)


def test_a_producers_patience_ends_without_followers(tmp_path: Path) -> None:
    async def test(led: Led) -> None:
        request = produce_request("orders", acks=-1)
        request.timeout_ms = 10
        answer = led.broker.answer(request, 9)
        assert isinstance(answer, asyncio.Future)
        parts = await answer
        code = int(ErrorCode.REQUEST_TIMED_OUT).to_bytes(2, "big")
        assert code in b"".join(bytes(part) for part in parts if not hasattr(part, "file"))

    led(tmp_path, test)


@pytest.mark.parametrize("acks", [0, 1])
def test_without_a_lease_a_leader_takes_nothing_on_its_own_word(tmp_path: Path, acks: int) -> None:
    async def test(led: Led) -> None:
        led.partition.holds_lease = lambda: False
        if acks == 0:
            assert led.broker.answer(produce_request("orders", acks=0), 9) is None
            assert led.broker.transport.is_closed
        else:
            result = await led.broker.produce(acks=acks)
            assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert "coordination store" in (result.error_message or "")
        assert led.partition.log.end_offset == 0
        answer = led.send(-1)
        await asyncio.sleep(0)
        led.confirm()
        assert (await answer).error_code == ErrorCode.NONE

    led(tmp_path, test)
