"""Long work of one broker: one slice at a time with others in between, and memory within the bound of requests."""

from __future__ import annotations

import asyncio
import itertools

from tailrace.broker.network.request_memory import RequestMemory
from tailrace.runtime.long_work import LongWork


def test_slices_of_many_take_turns_and_everybody_else_is_served_between_two() -> None:
    async def test() -> None:
        work = LongWork()
        done: list[str] = []

        async def many(name: str) -> None:
            for _ in range(5):
                await work.slice(lambda: done.append(name))

        async def others() -> None:
            while len([each for each in done if each != "others"]) < 15:
                done.append("others")
                await asyncio.sleep(0)

        await asyncio.gather(others(), *(many(name) for name in "abc"))
        slices = [each for each in done if each != "others"]
        assert slices == list("abc") * 5, "in turns"
        places = [place for place, each in enumerate(done) if each != "others"]
        assert all(later - earlier > 1 for earlier, later in itertools.pairwise(places)), done

    asyncio.run(test())


def test_work_waits_in_order_until_there_is_room_and_one_always_goes_on() -> None:
    async def test() -> None:
        memory = RequestMemory(100)
        memory.hold(90)  # requests
        work = LongWork(memory)
        began: list[int] = []
        ends = [asyncio.Event() for _ in range(5)]

        async def one(number: int, size: int) -> None:
            async with work.holding(size) as held:
                began.append(number)
                if number == 1:
                    held.shrink(2)
                await ends[number].wait()

        tasks = [asyncio.ensure_future(one(number, size)) for number, size in enumerate((500, 60, 3, 50, 1))]

        async def settle() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        await settle()
        assert began == [0], "one of any size, and none before its turn"
        tasks[2].cancel()
        ends[0].set()
        await settle()
        assert began == [0, 1], "it shrank, but the next does not fit beside the requests"
        memory.hold(-45)
        ends[1].set()
        await settle()
        assert began == [0, 1, 3, 4]
        assert memory.held_bytes == 45 + 51
        tasks[3].cancel()
        ends[4].set()
        await settle()
        assert (memory.held_bytes, work.held_bytes) == (45, 0)

    asyncio.run(test())
