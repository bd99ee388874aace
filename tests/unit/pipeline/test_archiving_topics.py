"""Topics of one archiving run: each fails, waits and recovers on its own."""

from __future__ import annotations

from tailrace.archive.errors import ArchiveDeniedError, ArchiveUnreachableError, LocationMissingError
from tailrace.client.errors import UnknownTopicError, UnreachableError
from tailrace.errors import TailraceError
from tailrace.pipeline.archiving.commit import ArchiveChangedError
from tailrace.pipeline.archiving.topics import ATTEMPTS, ArchivedTopic, ArchivingError, PassingError, failure_of


def failing(name: str, error: TailraceError) -> ArchivedTopic:
    return ArchivedTopic(name, None, error)


def test_pauses_grow_and_end_with_success() -> None:
    topic = ArchivedTopic("orders", None)
    waits = []
    for now in range(0, 1000, 100):
        topic.failed(UnreachableError("away"), now)
        waits.append(topic.retry_at - now)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
    topic.succeeded()
    assert topic.problem is None
    topic.failed(UnreachableError("away"), 0)
    assert topic.retry_at == 1


def test_what_only_somebody_can_end_is_lasting_and_looked_at_less_often() -> None:
    outages = [UnreachableError("x"), ArchiveUnreachableError("x"), LocationMissingError("x")]
    outages.append(ArchiveChangedError("x", is_elsewhere=True))  # opened again at its new place
    for outage in outages:
        topic = failing("orders", outage)
        assert (topic.is_lasting, topic.gives_up) == (False, True)
    lasting = [UnknownTopicError("x"), ArchiveDeniedError("x"), ArchivingError("x")]
    lasting.append(ArchiveChangedError("x", is_elsewhere=False))
    for error in lasting:
        topic = failing("orders", error)
        assert (topic.is_lasting, topic.gives_up) == (True, True)
        for _ in range(20):
            topic.failed(error, 0)
        assert topic.retry_at == 300


def test_what_passes_is_tried_a_few_times_unless_something_was_archived_in_between() -> None:
    topic = ArchivedTopic("orders", None)
    for _ in range(ATTEMPTS - 1):
        topic.failed(PassingError("a worker was killed", is_outage=False), 0)
        assert not topic.gives_up
    topic.progressed()
    topic.failed(PassingError("a worker was killed", is_outage=False), 0)
    assert not topic.gives_up
    for _ in range(ATTEMPTS):
        topic.failed(PassingError("a worker was killed", is_outage=False), 0)
    assert topic.gives_up
    assert topic.is_lasting


def test_news_are_told_once() -> None:
    topic = failing("orders", UnreachableError("away"))
    assert [topic.news(), topic.news()] == ["away", None]
    topic.failed(UnreachableError("denied"), 0)
    assert [topic.news(), topic.news()] == ["denied", None]
    topic.succeeded()
    topic.failed(UnreachableError("denied"), 0)
    assert topic.news() == "denied"


def test_a_run_ends_with_what_was_wrong() -> None:
    sound = ArchivedTopic("sound", None)
    gone = failing("gone", UnknownTopicError("topic 'gone' does not exist"))
    denied = failing("denied", ArchiveDeniedError("refused"))
    assert failure_of([sound]) is None
    assert failure_of([gone]) is gone.problem
    passing = failing("orders", PassingError("a worker was killed", is_outage=False))
    assert isinstance(failure_of([passing]), ArchivingError)
    assert str(failure_of([sound, gone, denied])) == (
        "2 of 3 topics could not be archived: denied: refused; topic 'gone' does not exist"
    )
