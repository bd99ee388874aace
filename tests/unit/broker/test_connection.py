"""A connection cuts frames out of any pieces, keeps answers in order, and does not read faster than it is read."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from tailrace.broker.network.buffers import BufferPool
from tailrace.broker.network.connection import Connection, Pending
from tailrace.broker.network.request_memory import FREE_BYTES, RequestMemory
from tailrace.errors import WireError
from tailrace.runtime.outcome import Outcome
from tailrace.runtime.transport import Part
from tests.unit.broker.memory_transport import MemoryTransport
from tests.unit.storage.logs import StandingClock

FRAME_LIMIT = 4 << 20
OPEN_REQUESTS = 64
UNSENT_BYTES = 8 << 20


class Echo:
    """Answers a frame with its own bytes: at once, later, or not at all, as its first letter says."""

    def __init__(self, scratch_bytes: int = 1 << 16, memory: RequestMemory | None = None) -> None:
        self.transport = MemoryTransport()
        self.frames: list[bytes] = []
        self.waiting: dict[bytes, asyncio.Future[list[Part]]] = {}
        self.promised: dict[bytes, Outcome[list[Part]]] = {}
        self.closed = 0
        scratch = memoryview(bytearray(scratch_bytes))
        self.memory = memory or RequestMemory()
        self.clock = StandingClock()
        self.connection = Connection(
            self.transport,
            "PLAINTEXT",
            self.answer,
            scratch,
            FRAME_LIMIT,
            self.on_closed,
            self.clock,
            BufferPool(),
            self.memory,
        )
        self.transport.receiver = self.connection

    def answer(self, connection: Connection, frame: memoryview) -> list[Part] | Pending | None:
        content = bytes(frame)
        self.frames.append(content)
        if content.startswith(b"none"):
            return None
        if content.startswith(b"wrong"):
            raise WireError("these bytes are not the protocol")
        if content.startswith(b"later"):
            future: asyncio.Future[list[Part]] = asyncio.get_running_loop().create_future()
            self.waiting[content] = future
            return future
        if content.startswith(b"promised"):
            outcome: Outcome[list[Part]] = Outcome()
            self.promised[content] = outcome
            return outcome
        return [content]

    def on_closed(self, connection: Connection) -> None:
        self.closed += 1


async def resumed() -> None:
    """The turn in which an answer is sent, and the next, in which requests that were held back are served."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(content)) + content for content in contents)


def contents(count: int, start: bytes = b"now") -> list[bytes]:
    return [start + b"-%05d" % number for number in range(count)]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


@pytest.mark.parametrize("piece", range(1, 40))
def test_frames_are_found_in_pieces_of_any_size(piece: int) -> None:
    echo = Echo()
    sent = [b"a frame!", b"another frame", b"x" * 100, *contents(5)]
    echo.transport.deliver(framed(*sent), piece)
    assert echo.frames == sent
    assert echo.transport.sent == b"".join(sent)


@pytest.mark.parametrize("scratch_bytes", [16, 100, 1000, 1 << 20])
def test_frames_larger_than_a_read_are_put_together(scratch_bytes: int) -> None:
    random = Random(scratch_bytes)
    echo = Echo(scratch_bytes)
    sent = [random.randbytes(random.choice([8, 20, 5000, 70_000, 1_200_000])) for _ in range(8)]
    echo.transport.deliver(framed(*sent))
    assert echo.frames == sent


def test_the_largest_frame_is_taken_and_one_byte_more_closes_the_connection() -> None:
    echo = Echo()
    echo.transport.deliver(framed(bytes(FRAME_LIMIT)))
    assert [len(frame) for frame in echo.frames] == [FRAME_LIMIT]
    assert not echo.transport.is_closed
    echo.transport.deliver(struct.pack(">i", FRAME_LIMIT + 1))
    assert echo.transport.is_closed


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 7, 2**31 - 1])
def test_a_length_that_cannot_be_closes_the_connection_after_the_answers_before_it(length: int) -> None:
    echo = Echo()
    echo.transport.deliver(framed(b"a frame!") + struct.pack(">i", length) + bytes(20))
    assert echo.transport.sent == b"a frame!"
    assert echo.transport.is_closed


def test_a_large_announcement_costs_no_memory_before_its_bytes_come() -> None:
    echo = Echo()
    echo.transport.deliver(struct.pack(">i", FRAME_LIMIT) + bytes(10))
    assert len(echo.connection.lend_buffer()) <= 1 << 20


def test_bytes_that_are_not_the_protocol_close_the_connection_after_the_answers_before_them() -> None:
    echo = Echo()
    echo.transport.deliver(framed(b"a frame!", b"wrong frame", b"never seen"))
    assert echo.transport.sent == b"a frame!"
    assert echo.transport.is_closed
    assert b"never seen" not in echo.frames


def test_all_answers_of_one_read_go_out_in_one_send() -> None:
    echo = Echo()
    echo.transport.deliver(framed(*contents(20)))
    assert len(echo.transport.sends) == 1


def test_a_request_that_wants_no_answer_gets_none() -> None:
    echo = Echo()
    echo.transport.deliver(framed(b"a frame!", b"none please", b"another!"))
    assert echo.transport.sent == b"a frame!another!"


@pytest.mark.parametrize("seed", range(20))
def test_answers_keep_the_order_of_their_requests_however_late_they_are(seed: int) -> None:
    async def test() -> None:
        random = Random(seed)
        echo = Echo()
        sent = [random.choice([b"now", b"later"]) + b"-%05d" % number for number in range(30)]
        echo.transport.deliver(framed(*sent))
        waiting = list(echo.waiting)
        random.shuffle(waiting)
        for content in waiting:
            echo.waiting[content].set_result([content])
            await asyncio.sleep(0)
            assert b"".join(sent).startswith(echo.transport.sent)
        assert echo.transport.sent == b"".join(sent)
        assert not echo.connection.is_waiting

    run(test)


def test_a_client_with_too_many_open_requests_is_not_read_until_some_are_answered() -> None:
    async def test() -> None:
        echo = Echo()
        sent = contents(OPEN_REQUESTS + 10, b"later")
        echo.transport.deliver(framed(*sent))
        assert len(echo.frames) == OPEN_REQUESTS
        assert not echo.transport.is_reading
        for number, content in enumerate(sent):
            echo.waiting[content].set_result([content])
            await resumed()
            assert len(echo.frames) == min(len(sent), OPEN_REQUESTS + number + 1)
        assert echo.transport.is_reading
        assert echo.transport.sent == b"".join(sent)

    run(test)


def test_an_outcome_is_sent_inside_the_call_that_ends_it_in_its_place() -> None:
    async def test() -> None:
        echo = Echo()
        echo.transport.deliver(framed(b"promised-1", b"promised-2", b"now-00001"))
        echo.promised[b"promised-2"].set_result([b"two"])
        assert echo.transport.sent == b""
        echo.promised[b"promised-1"].set_result([b"one"])
        assert echo.transport.sends == [b"onetwonow-00001"]
        echo.transport.deliver(framed(b"promised-3"))
        echo.promised[b"promised-3"].set_exception(WireError("no"))
        assert echo.transport.is_closed

    run(test)


def test_requests_that_were_held_back_are_not_served_inside_the_call_that_ends_an_outcome() -> None:
    async def test() -> None:
        echo = Echo()
        sent = contents(OPEN_REQUESTS + 2, b"promised")
        echo.transport.deliver(framed(*sent))
        echo.promised[sent[0]].set_result([b"first"])
        assert len(echo.frames) == OPEN_REQUESTS
        assert echo.transport.sent == b"first"
        await asyncio.sleep(0)
        assert len(echo.frames) == OPEN_REQUESTS + 1

    run(test)


def test_an_outcome_for_a_client_that_is_gone_is_cancelled() -> None:
    async def test() -> None:
        echo = Echo()
        echo.transport.deliver(framed(b"promised-1", b"promised-2"))
        echo.transport.disconnect()
        assert all(outcome.cancelled() for outcome in echo.promised.values())
        assert echo.closed == 1

    run(test)


def test_a_client_that_does_not_read_its_answers_is_not_read_until_it_does() -> None:
    echo = Echo(scratch_bytes=8 << 20)
    echo.transport.is_taking = False
    large = b"x" * (3 << 20)
    sent = [large, large, large, *contents(3)]
    echo.transport.deliver(framed(large, large))
    assert echo.transport.is_reading
    echo.transport.deliver(framed(large))
    assert not echo.transport.is_reading
    echo.transport.take()
    assert echo.transport.is_reading
    echo.transport.deliver(framed(*contents(3)))
    assert echo.frames == sent


def test_frames_held_back_while_answers_pile_up_are_served_when_the_client_has_read() -> None:
    echo = Echo(scratch_bytes=1 << 20)
    echo.transport.is_taking = False
    answers = b"y" * (FRAME_LIMIT - 1)
    echo.transport.deliver(framed(answers))
    echo.transport.deliver(framed(answers))
    assert echo.transport.unsent_bytes < UNSENT_BYTES
    echo.transport.deliver(framed(b"z" * 100, *contents(50)))
    served = len(echo.frames)
    assert served < 53
    assert not echo.transport.is_reading
    echo.transport.take()
    assert len(echo.frames) == 53
    assert echo.transport.sent.endswith(b"".join(contents(50)))


def test_a_request_that_failed_closes_the_connection() -> None:
    async def test() -> None:
        echo = Echo()
        echo.transport.deliver(framed(*contents(2, b"later")))
        echo.waiting[b"later-00001"].set_exception(WireError("it failed"))
        await asyncio.sleep(0)
        assert echo.transport.is_closed
        assert echo.transport.sent == b""

    run(test)


def test_when_the_client_is_gone_its_requests_are_given_up() -> None:
    async def test() -> None:
        echo = Echo()
        echo.transport.deliver(framed(*contents(3, b"later"), b"now and then"))
        assert echo.connection.is_waiting
        echo.waiting[b"later-00001"].set_exception(WireError("nobody will hear of it"))
        echo.transport.disconnect()
        await asyncio.sleep(0)
        assert echo.closed == 1
        assert [echo.waiting[content].cancelled() for content in contents(3, b"later")] == [True, False, True]
        assert echo.transport.sent == b""

    run(test)


def test_a_read_full_of_small_requests_is_answered_in_several_turns_and_in_order() -> None:
    async def test() -> None:
        echo = Echo()
        sent = contents(1000)
        echo.transport.deliver(framed(*sent), 1 << 16)
        others_had_a_turn = len(echo.frames)
        assert 0 < others_had_a_turn < len(sent)
        while len(echo.frames) < len(sent):
            before = len(echo.frames)
            await asyncio.sleep(0)
            assert len(echo.frames) > before
        assert echo.frames == sent
        assert echo.transport.sent == b"".join(sent)

    run(test)


# --- the memory that all connections share


def half(size: int) -> bytes:
    """The beginning of a frame of a size, with half of its bytes."""
    return struct.pack(">i", size) + bytes(size // 2)


def test_what_a_connection_holds_is_counted_until_it_holds_it_no_more() -> None:
    async def test() -> None:
        echo = Echo()
        frame = b"later" + bytes(300_000)
        echo.transport.deliver(framed(frame)[:200_000], 50_000)
        assert echo.memory.held_bytes == echo.connection.held_bytes >= 200_000
        echo.transport.deliver(framed(frame)[200_000:])
        assert echo.memory.held_bytes == echo.connection.held_bytes == len(frame)
        echo.transport.is_taking = False
        echo.waiting[frame].set_result([b"x" * 1000])
        await asyncio.sleep(0)
        assert 1000 <= echo.memory.held_bytes == echo.connection.held_bytes < 2000
        echo.transport.take()
        assert echo.memory.held_bytes == echo.connection.held_bytes == 0

    run(test)


def test_a_connection_that_ends_gives_back_what_it_held() -> None:
    async def test() -> None:
        echo = Echo()
        echo.transport.deliver(framed(b"later" + bytes(100_000)) + half(500_000))
        assert echo.memory.held_bytes > 300_000
        echo.transport.disconnect()
        assert echo.memory.held_bytes == 0

    run(test)


def test_without_memory_a_large_request_waits_and_small_ones_do_not() -> None:
    async def test() -> None:
        memory = RequestMemory(64 << 20)
        memory.hold(64 << 20)
        crowd = [Echo(memory=memory) for _ in range(30)]
        for echo in crowd:
            echo.transport.deliver(half(1 << 20)[:FREE_BYTES])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        paused = [echo for echo in crowd if not echo.transport.is_reading]
        assert 0 < len(paused) < len(crowd), "some exceed the bound, within another bound"
        small = Echo(memory=memory)
        small.transport.deliver(framed(*contents(100)))
        assert len(small.frames) == 100
        memory.hold(-(64 << 20))
        for _ in range(3):
            await asyncio.sleep(0)
        assert all(echo.transport.is_reading for echo in crowd)

    run(test)


def test_requests_that_were_held_up_for_memory_come_through_whole_one_after_another() -> None:
    async def test() -> None:
        random = Random(5)
        memory = RequestMemory(100_000)
        crowd = [Echo(memory=memory) for _ in range(40)]
        sent = [random.randbytes(random.choice([50_000, 900_000, 3_000_000])) for _ in crowd]
        left = [memoryview(framed(frame)) for frame in sent]
        rounds = 0
        while any(left):
            rounds += 1
            assert rounds < 100_000, "nobody moves any more"
            for number, echo in enumerate(crowd):
                if left[number] and echo.transport.is_reading:
                    size = min(len(left[number]), len(echo.connection.lend_buffer()), 40_000)
                    echo.transport.deliver(bytes(left[number][:size]))
                    left[number] = left[number][size:]
            await asyncio.sleep(0)
            # One of any size, small ones up to 16 MiB, and each connection's own small share.
            assert memory.held_bytes < 100_000 + FRAME_LIMIT + (16 << 20) + len(crowd) * 2 * FREE_BYTES
        assert [echo.frames for echo in crowd] == [[frame] for frame in sent]
        assert memory.held_bytes == 0

    run(test)


def test_a_connection_is_stuck_while_only_its_client_could_move_it() -> None:
    async def test() -> None:
        echo = Echo()
        echo.transport.deliver(half(200_000))
        assert echo.connection.seconds_stuck() == 0
        echo.clock.seconds += 10
        assert echo.connection.seconds_stuck() == 10
        echo.transport.deliver(bytes(10))
        assert echo.connection.seconds_stuck() == 0
        echo.transport.deliver(bytes(100_000 - 10))
        echo.clock.seconds += 10
        assert echo.connection.seconds_stuck() == 0, "nothing is expected of the client"
        echo.transport.is_taking = False
        echo.transport.deliver(framed(bytes(1000)))
        echo.connection.seconds_stuck()
        echo.clock.seconds += 10
        assert echo.connection.seconds_stuck() == 10, "it does not read its answer"

    run(test)


def test_many_bytes_of_open_requests_stop_reading_as_many_requests_do() -> None:
    async def test() -> None:
        echo = Echo(scratch_bytes=1 << 20)
        sent = [b"later-%05d" % number + bytes(3 << 20) for number in range(12)]
        for frame in sent:
            if echo.transport.is_reading:
                echo.transport.deliver(framed(frame))
        assert len(echo.frames) == 11
        assert not echo.transport.is_reading
        echo.waiting[sent[0]].set_result([b"first"])
        await resumed()
        assert echo.transport.is_reading

    run(test)
