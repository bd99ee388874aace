"""Outcomes: callbacks run once, inside the completing call, with the results that `asyncio.Future` would have."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.runtime.outcome import Outcome


def test_callbacks_run_in_order_inside_the_call_that_completes_the_outcome() -> None:
    outcome: Outcome[int] = Outcome()
    told: list[str] = []
    outcome.add_done_callback(lambda done: told.append(f"first {done.result()}"))
    outcome.add_done_callback(lambda done: told.append(f"second {done.result()}"))
    assert told == []
    outcome.set_result(7)
    assert told == ["first 7", "second 7"]
    outcome.add_done_callback(lambda done: told.append(f"late {done.result()}"))
    assert told[2:] == ["late 7"]


def test_an_error_is_kept_and_raised_to_who_asks_for_the_result() -> None:
    outcome: Outcome[int] = Outcome()
    outcome.set_exception(ValueError("no"))
    assert isinstance(outcome.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        outcome.result()


def test_it_ends_once() -> None:
    outcome: Outcome[int] = Outcome()
    with pytest.raises(asyncio.InvalidStateError):
        outcome.result()
    outcome.set_result(1)
    assert not outcome.cancel()
    with pytest.raises(asyncio.InvalidStateError):
        outcome.set_result(2)
    assert outcome.result() == 1


def test_who_cancels_it_tells_the_others() -> None:
    outcome: Outcome[int] = Outcome()
    told: list[bool] = []
    outcome.add_done_callback(lambda done: told.append(done.cancelled()))
    assert outcome.cancel()
    assert told == [True]
    with pytest.raises(asyncio.CancelledError):
        outcome.exception()


def test_it_can_be_awaited_before_and_after_its_end() -> None:
    async def test() -> None:
        outcome: Outcome[int] = Outcome()
        waiting = asyncio.ensure_future(outcome)
        await asyncio.sleep(0)
        outcome.set_result(3)
        assert await waiting == 3
        assert await outcome == 3

    asyncio.run(test())
