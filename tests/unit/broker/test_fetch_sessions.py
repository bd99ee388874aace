"""Incremental fetch sessions, by the rules of KIP-227."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from tailrace.broker.fetching.sessions import FetchSession, FetchSessions, SessionPartition
from tailrace.errors import ErrorCode, KafkaError
from tailrace.wire.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tests.unit.storage.logs import StandingClock

SLOTS = 3


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def sessions(clock: StandingClock) -> FetchSessions:
    return FetchSessions(SLOTS, clock, Random(1))


def request(
    session_id: int = 0, epoch: int = 0, partitions: dict[int, int] | None = None, forget: tuple[int, ...] = ()
) -> FetchRequest:
    """A fetch of partitions of one topic, by number and offset."""
    topics = [
        FetchTopic(topic="orders", partitions=[FetchPartition(partition=n, fetch_offset=o) for n, o in wanted.items()])
        for wanted in [{0: 0} if partitions is None else partitions]
        if wanted
    ]
    forgotten = [ForgottenTopic(topic="orders", partitions=list(forget))] if forget else []
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics, forgotten_topics_data=forgotten)


def opened(sessions: FetchSessions, partitions: dict[int, int] | None = None) -> FetchSession:
    session = sessions.resolve(request(partitions=partitions), by_topic_id=False)
    assert session is not None
    return session


def wanted(session: FetchSession) -> dict[int, int]:
    return {number: partition.wanted.fetch_offset for (_, number), partition in session.partitions.items()}


def refusal(sessions: FetchSessions, fetch: FetchRequest, by_topic_id: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        sessions.resolve(fetch, by_topic_id)
    return caught.value.code


def test_a_full_fetch_opens_a_session(sessions: FetchSessions) -> None:
    session = opened(sessions, {0: 5, 1: 7})
    assert session.session_id > 0
    assert wanted(session) == {0: 5, 1: 7}


def test_an_incremental_fetch_adds_changes_and_forgets(sessions: FetchSessions) -> None:
    session = opened(sessions, {0: 5, 1: 7})
    again = sessions.resolve(request(session.session_id, 1, {1: 8, 2: 0}, forget=(0, 9)), by_topic_id=False)
    assert again is session
    assert wanted(session) == {1: 8, 2: 0}
    sessions.resolve(request(session.session_id, 2, {}), by_topic_id=False)
    assert wanted(session) == {1: 8, 2: 0}


def test_epochs_must_follow_each_other(sessions: FetchSessions) -> None:
    session = opened(sessions)
    for wrong in (2, 3, 100):
        assert refusal(sessions, request(session.session_id, wrong)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sessions.resolve(request(session.session_id, 1), by_topic_id=False)
    assert refusal(sessions, request(session.session_id, 1)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_after_the_largest_epoch_comes_one_because_zero_opens_a_session(sessions: FetchSessions) -> None:
    session = opened(sessions)
    session.next_epoch = 2**31 - 1
    sessions.resolve(request(session.session_id, 2**31 - 1), by_topic_id=False)
    assert session.next_epoch == 1


def test_an_unknown_session_is_not_found(sessions: FetchSessions) -> None:
    assert refusal(sessions, request(12345, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_in_a_session_replaces_it(sessions: FetchSessions) -> None:
    old = opened(sessions, {0: 0, 1: 0})
    new = sessions.resolve(request(old.session_id, 0, {5: 5}), by_topic_id=False)
    assert new is not None
    assert (new.session_id != old.session_id, wanted(new), len(sessions)) == (True, {5: 5}, 1)


def test_the_final_epoch_closes_the_session_and_is_answered_without_one(sessions: FetchSessions) -> None:
    session = opened(sessions)
    assert sessions.resolve(request(session.session_id, -1), by_topic_id=False) is None
    assert len(sessions) == 0
    assert refusal(sessions, request(session.session_id, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_without_a_session_is_answered_without_one(sessions: FetchSessions) -> None:
    assert sessions.resolve(request(0, -1), by_topic_id=False) is None
    assert sessions.resolve(request(0, 0, {}), by_topic_id=False) is None
    assert len(sessions) == 0


def test_a_session_keeps_naming_topics_as_it_began(sessions: FetchSessions) -> None:
    session = opened(sessions)
    fetch = request(session.session_id, 1)
    assert refusal(sessions, fetch, by_topic_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_topics_may_be_named_by_id(sessions: FetchSessions) -> None:
    topic_id = UUID(int=7)
    fetch = FetchRequest(session_epoch=0, topics=[FetchTopic(topic_id=topic_id, partitions=[FetchPartition()])])
    session = sessions.resolve(fetch, by_topic_id=True)
    assert session is not None
    assert list(session.partitions) == [(topic_id, 0)]
    forget = FetchRequest(
        session_id=session.session_id,
        session_epoch=1,
        forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=[0])],
    )
    sessions.resolve(forget, by_topic_id=True)
    assert session.partitions == {}


def test_when_all_slots_are_taken_new_clients_are_served_without_a_session(sessions: FetchSessions) -> None:
    for _ in range(SLOTS):
        opened(sessions)
    assert sessions.resolve(request(), by_topic_id=False) is None
    assert len(sessions) == SLOTS


def test_the_session_that_was_silent_for_longest_gives_way(sessions: FetchSessions, clock: StandingClock) -> None:
    first, second, third = (opened(sessions) for _ in range(SLOTS))
    clock.seconds = 119
    assert sessions.resolve(request(), by_topic_id=False) is None
    sessions.resolve(request(first.session_id, 1), by_topic_id=False)
    clock.seconds = 121
    opened(sessions)
    assert refusal(sessions, request(second.session_id, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for kept, epoch in ((first, 2), (third, 1)):
        assert sessions.resolve(request(kept.session_id, epoch), by_topic_id=False) is kept


def many(count: int) -> dict[int, int]:
    return dict.fromkeys(range(count), 0)


def test_all_sessions_together_hold_a_bounded_number_of_partitions(clock: StandingClock) -> None:
    sessions = FetchSessions(100, clock, Random(1), max_partitions=10)
    first = opened(sessions, many(6))
    second = opened(sessions, many(4))
    assert sessions.resolve(request(partitions=many(1)), by_topic_id=False) is None
    # What one forgets another may have.
    sessions.resolve(request(first.session_id, 1, {}, forget=(0, 1)), by_topic_id=False)
    third = opened(sessions, many(2))
    # One that grows beyond loses its session, and what it held.
    assert refusal(sessions, request(third.session_id, 1, many(3))) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    fourth = opened(sessions, many(2))
    # The silent ones give way when it is time.
    clock.seconds = 60
    sessions.resolve(request(fourth.session_id, 1), by_topic_id=False)
    clock.seconds = 121
    fifth = opened(sessions, many(7))
    assert refusal(sessions, request(first.session_id, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(sessions, request(second.session_id, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resolve(request(fourth.session_id, 2), by_topic_id=False) is fourth
    # A session that its client closes leaves its room.
    sessions.resolve(request(fifth.session_id, -1, many(7)), by_topic_id=False)
    opened(sessions, many(8))


def test_partitions_that_had_data_are_served_last_next_time(sessions: FetchSessions) -> None:
    session = opened(sessions, {0: 0, 1: 0, 2: 0})
    session.moved_to_end([("orders", 0), ("orders", 9)])
    assert list(wanted(session)) == [1, 2, 0]


def answer(high_watermark: int = 5, log_start: int = 0, **fields: object) -> PartitionData:
    return PartitionData(high_watermark=high_watermark, log_start_offset=log_start, **({"records": b""} | fields))


def test_only_news_is_told() -> None:
    partition = SessionPartition(FetchPartition())
    assert partition.is_news(answer())
    assert not partition.is_news(answer())
    assert partition.is_news(answer(high_watermark=6))
    assert partition.is_news(answer(high_watermark=6, log_start=1))
    assert not partition.is_news(answer(high_watermark=6, log_start=1))
    assert partition.is_news(answer(high_watermark=6, log_start=1, records=b"some"))
    assert partition.is_news(answer(high_watermark=6, log_start=1, diverging_epoch=EpochEndOffset(epoch=1)))


def test_errors_are_told_every_time_and_so_is_that_they_are_over() -> None:
    partition = SessionPartition(FetchPartition())
    assert partition.is_news(answer())
    for _ in range(2):
        assert partition.is_news(answer(error_code=ErrorCode.KAFKA_STORAGE_ERROR))
    assert partition.is_news(answer())
    assert not partition.is_news(answer())
