"""Commits whose answers are lost: made once, recognized as made, and no file of them deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.archive.location import open_location
from tailrace.client.archive import describe
from tailrace.pipeline.archiving.commit import TopicArchiver
from tailrace.wire.apis import ApiKey
from tests.support.archives.archived_topics import archived_configs, some_records
from tests.support.archives.archiver import archive_up_to, write_files
from tests.support.archives.archiving import archived_records, names_below, verified
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.network.lossy_door import LossyDoor
from tests.support.topics import create_topic

RECORDS = 100


@pytest.fixture
def archived_topic(broker: BrokerProcess, topic: str, tmp_path: Path) -> str:
    create_topic(broker.bootstrap, topic, **archived_configs(tmp_path / "archive"))
    ConfluentClient(broker.bootstrap).produce(topic, some_records(RECORDS))
    return topic


@pytest.fixture
def make_door(broker: BrokerProcess) -> Iterator[Callable[..., LossyDoor]]:
    doors: list[LossyDoor] = []

    def make(lost_answers: int, on_lost: Callable[[], object] = lambda: None) -> LossyDoor:
        doors.append(LossyDoor(broker.port, ApiKey.ARCHIVE_COMMIT, lost_answers, on_lost).__enter__())
        return doors[-1]

    yield make
    for door in doors:
        door.__exit__()


def archiver(bootstrap: str, topic: str) -> TopicArchiver:
    status = describe(bootstrap, topic)
    made = TopicArchiver(bootstrap, status, open_location(status.uri))
    made.refresh()
    return made


def test_a_commit_whose_answer_is_lost_is_made_once(
    broker: BrokerProcess, make_door: Callable[..., LossyDoor], archived_topic: str
) -> None:
    door = make_door(lost_answers=2)
    mine = archiver(door.bootstrap, archived_topic)
    files = write_files(broker.bootstrap, mine.status, {0: RECORDS}, rows_per_file=40)
    assert mine.commit(files)
    assert door.lost_answers == 0
    assert (mine.status.version, mine.archived_end(0)) == (1, RECORDS)
    assert describe(broker.bootstrap, archived_topic).version == 1
    report = verified(broker.bootstrap, archived_topic)
    assert (report.rows, report.orphans) == (RECORDS, [])


def test_a_commit_whose_answer_is_lost_and_that_others_have_followed_is_known_to_be_made(
    broker: BrokerProcess, make_door: Callable[..., LossyDoor], archived_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The waiting archiver must not ask again before the others are done, however long they take.
    monkeypatch.setattr("tailrace.client.request.REQUEST_TIMEOUT", 300.0)
    monkeypatch.setattr("tailrace.pipeline.archiving.commit._PATIENCE_SECONDS", 600.0)

    def follow() -> None:
        for end in (60, 80, RECORDS):
            archive_up_to(broker.bootstrap, archived_topic, {0: end})

    door = make_door(1, follow)
    mine = archiver(door.bootstrap, archived_topic)
    assert mine.commit(write_files(broker.bootstrap, mine.status, {0: 50}))
    assert (mine.status.version, mine.archived_end(0)) == (4, RECORDS)
    report = verified(broker.bootstrap, archived_topic)
    assert (report.rows, report.orphans) == (RECORDS, [])
    assert [each.offset for each in archived_records(broker.bootstrap, archived_topic, 0)] == list(range(RECORDS))


def test_what_others_have_archived_meanwhile_is_not_archived_twice(
    broker: BrokerProcess, archived_topic: str, tmp_path: Path
) -> None:
    mine = archiver(broker.bootstrap, archived_topic)
    files = write_files(broker.bootstrap, mine.status, {0: 50})
    archive_up_to(broker.bootstrap, archived_topic, {0: 30})
    before = len(list(names_below(tmp_path / "archive")))
    assert not mine.commit(files)
    assert (mine.status.version, mine.archived_end(0)) == (1, 30)
    assert len(list(names_below(tmp_path / "archive"))) == before - 1
    report = verified(broker.bootstrap, archived_topic)
    assert (report.rows, report.orphans) == (30, [])


def test_an_archiver_keeps_to_what_it_knows_when_a_broker_is_behind(
    broker: BrokerProcess, archived_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = archiver(broker.bootstrap, archived_topic)
    stale = mine.status
    assert mine.commit(write_files(broker.bootstrap, mine.status, {0: 50}))
    # No real broker lags long enough for this test.
    monkeypatch.setattr("tailrace.pipeline.archiving.commit.describe", lambda bootstrap, topic: stale)
    mine.refresh()
    assert (mine.status.version, mine.archived_end(0)) == (1, 50)
    assert mine.commit(write_files(broker.bootstrap, mine.status, {0: RECORDS}))
    monkeypatch.undo()
    assert verified(broker.bootstrap, archived_topic).rows == RECORDS
