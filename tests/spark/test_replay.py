"""Replays: what is in the target is what was in the source, record by record, whatever came between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.client import Producer
from tailrace.client.murmur2 import murmur2
from tailrace.errors import ConfigError, TailraceError
from tailrace.pipeline.jobs.checkpoints import CheckpointError
from tailrace.pipeline.jobs.run import Stop
from tailrace.pipeline.replay.plan import Bounds, Moment, Replay
from tailrace.pipeline.replay.replaying import ReplayedBatch, prepare, run_replay
from tailrace.pipeline.spark.errors import PipelineError
from tests.support.archives.archived_topics import FIRST_TIME, archived_configs, some_records
from tests.support.archives.archiver import archive_up_to
from tests.support.batches.poison import DAMAGES, poison_batch, produce_batch
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Received, Record
from tests.support.spark.job_run import JobProcess, read_json, send_json
from tests.support.topics import create_topic, delete_topic

COUNT = 600
Run = Callable[..., list[ReplayedBatch]]


@pytest.fixture
def warnings() -> list[str]:
    """The warnings of replays."""
    return []


@pytest.fixture
def run(spark: SparkSession, broker: BrokerProcess, tmp_path: Path, warnings: list[str]) -> Run:
    """Replay to the end, as the command does."""

    def replayed(source: str, target: str, **settings: Any) -> list[ReplayedBatch]:
        asked = Replay(broker.bootstrap, source, target, **settings)
        prepared = prepare(asked, str(tmp_path / f"checkpoint-{target}"), warnings.append)
        batches: list[ReplayedBatch] = []
        try:
            run_replay(spark, prepared, report=batches.append, warn=warnings.append, stop=Stop())
        finally:
            prepared.close()
        return batches

    return replayed


def consume(broker: BrokerProcess, topic: str, partition: int) -> list[Received]:
    client = ConfluentClient(broker.bootstrap)
    _, end = client.offsets(topic, [partition])[partition]
    return client.consume(topic, partition, end, timeout_seconds=120) if end else []


def seen(received: list[Received]) -> list[tuple[object, int]]:
    return [(each.content(), each.timestamp_ms) for each in received]


def sent(records: list[Record]) -> list[tuple[object, int | None]]:
    return [((each.key, each.value, each.headers), each.timestamp_ms) for each in records]


def test_archive_and_log_are_replayed_byte_by_byte_and_the_archive_when_its_topic_is_gone(
    broker: BrokerProcess, run: Run, topic: str, tmp_path: Path, warnings: list[str]
) -> None:
    bootstrap = broker.bootstrap
    create_topic(bootstrap, topic, partitions=2, **archived_configs(tmp_path / "archive"))
    records = some_records(COUNT)
    # A time that is decades away from the others in its batch.
    records[50] = records[50]._replace(timestamp_ms=1)
    ConfluentClient(bootstrap).produce(topic, records)
    ConfluentClient(bootstrap).produce(topic, [each._replace(partition=1) for each in records])
    archive_up_to(bootstrap, topic, {0: 250, 1: 100}, rows_per_file=60)
    archive_up_to(bootstrap, topic, {0: 400}, rows_per_file=60)

    whole = create_topic(bootstrap, f"{topic}-whole", partitions=3)
    batches = run(topic, whole, max_offsets_per_batch=500)
    assert [each.number for each in batches] == [0, 1, 2]
    assert sum(each.records for each in batches) == 2 * COUNT
    assert (batches[-1].left, batches[-1].as_text().endswith("nothing left")) == (0, True)
    assert [seen(consume(broker, whole, number)) for number in range(3)] == [sent(records), sent(records), []]
    # None says that records were not read from files.
    assert [each.partition(",")[0] for each in warnings] == [
        f"some records are older than the retention of topic '{whole}'"
    ]

    part = create_topic(bootstrap, f"{topic}-part", partitions=2)
    run(topic, part, bounds=Bounds({None: 120}, {0: 130, 1: COUNT}))
    assert seen(consume(broker, part, 0)) == sent(records[120:130])
    assert seen(consume(broker, part, 1)) == sent(records[120:])

    timed = create_topic(bootstrap, f"{topic}-timed", partitions=2)
    since, until = (Moment(FIRST_TIME + 1000 * number, "") for number in (300, 500))
    run(topic, timed, bounds=Bounds(since=since, until=until, partitions=(1,)))
    assert [seen(consume(broker, timed, number)) for number in range(2)] == [[], sent(records[300:500])]

    (directory,) = (tmp_path / "archive").glob("topic=*/id=*")
    delete_topic(bootstrap, topic)
    old = create_topic(bootstrap, f"{topic}-old", partitions=2)
    run(str(directory), old, bounds=Bounds({0: 10}), max_offsets_per_batch=200)
    assert seen(consume(broker, old, 0)) == sent(records[10:400])
    assert seen(consume(broker, old, 1)) == sent(records[:100])


def test_a_filter_chooses_by_columns_or_by_fields_and_keys_choose_partitions(
    broker: BrokerProcess, run: Run, topic: str
) -> None:
    bootstrap = broker.bootstrap
    create_topic(bootstrap, topic, partitions=3)
    with Producer(bootstrap) as producer:
        for number in range(90):
            value = json.dumps({"id": number, "amount": number * 10})
            producer.send(topic, value, key=f"k{number % 30}", partition=number % 30 % 3, timestamp_ms=FIRST_TIME)
    kept = [create_topic(bootstrap, f"{topic}-{which}", partitions=3) for which in ("columns", "fields")]
    where = "CAST(value AS STRING) LIKE '%\"id\": 1%' AND offset < 20"
    run(topic, kept[0], where=where, timestamps="now")
    run(topic, kept[1], where="amount >= 850 AND _key IS NOT NULL", format="json")
    found = [[json.loads(each.value or b"")["id"] for each in consume(broker, kept[0], number)] for number in range(3)]
    assert found == [[each for each in range(partition, 60, 3) if str(each)[0] == "1"] for partition in range(3)]
    assert all(each.timestamp_ms > FIRST_TIME for each in consume(broker, kept[0], 1))
    found = [[json.loads(each.value or b"")["id"] for each in consume(broker, kept[1], number)] for number in range(3)]
    assert found == [[87], [85, 88], [86, 89]]

    few = create_topic(bootstrap, f"{topic}-few", partitions=2)
    run(topic, few, partition_by="key")
    by_key: dict[bytes | None, list[int]] = {}
    for number in range(2):
        for each in consume(broker, few, number):
            assert (murmur2(each.key or b"") & 0x7FFFFFFF) % 2 == number
            by_key.setdefault(each.key, []).append(json.loads(each.value or b"")["id"])
    assert by_key == {f"k{key}".encode(): [key, key + 30, key + 60] for key in range(30)}


def test_what_cannot_be_replayed_is_refused_in_plain_words(
    broker: BrokerProcess, run: Run, topic: str, tmp_path: Path
) -> None:
    bootstrap = broker.bootstrap
    create_topic(bootstrap, topic, partitions=2)
    few = create_topic(bootstrap, f"{topic}-few")
    same = create_topic(bootstrap, f"{topic}-same", partitions=2)
    ConfluentClient(bootstrap).produce(topic, [Record(b"v", None), Record(b"v", None, partition=1)])

    def refusal(source: str, target: str, kind: type[TailraceError] = ConfigError, **settings: Any) -> str:
        with pytest.raises(kind) as caught:
            run(source, target, **settings)
        assert "\tat " not in str(caught.value)
        return str(caught.value)

    assert "cannot be replayed into itself" in refusal(topic, topic)
    assert f"'{few}' has 1 partition, but '{topic}' has one with number 1" in refusal(topic, few)
    assert "at offset 0 of partition" in refusal(topic, few, TailraceError, partition_by="key")
    assert "does not exist" in refusal("nobody-made-this", same, TailraceError)
    assert "target topic 'nobody-made-this' does not exist" in refusal(topic, "nobody-made-this", TailraceError)
    assert "does not exist yet: it ends before offset 1" in refusal(topic, same, bounds=Bounds({0: 7}))
    assert "is after its --to-offset 0" in refusal(topic, same, bounds=Bounds({0: 1}, {0: 0}))
    assert "has no partition 9; it has 0 to 1" in refusal(topic, same, bounds=Bounds(partitions=(9,)))
    assert "ends in topic=NAME/id=ID" in refusal("/somewhere/else", same)
    assert "there is no column `amont`" in refusal(topic, same, PipelineError, where="amont > 1")
    assert "syntax" in refusal(topic, same, PipelineError, where="value >").lower()
    assert "is not a boolean" in refusal(topic, same, PipelineError, where="offset + 1")
    assert consume(broker, same, 0) == consume(broker, same, 1) == []
    # A range without records is not an error.
    assert run(topic, same, bounds=Bounds({None: 1})) == []


def test_a_replay_that_is_killed_goes_on_and_repeats_only_what_the_crash_cut_short(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    # Enough batches that it is not done before it is killed, however late that is.
    partitions, count, step = 2, 2000, 200
    create_topic(broker.bootstrap, topic, partitions=partitions)
    target = create_topic(broker.bootstrap, f"{topic}-target", partitions=partitions)
    for number in range(partitions):
        send_json(broker.bootstrap, topic, [{"n": each} for each in range(count)], partition=number)
    command = [topic, "--to", target, "--bootstrap", broker.bootstrap, "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--max-offsets-per-batch", str(step), "--master", "local[2]", "--conf", "spark.driver.memory=512m"]
    errors = tmp_path / "stderr"
    with JobProcess(command, errors, command="replay") as process:
        batches = [process.next_batch() for _ in range(2)]
        process.kill()
    assert [batch and batch["batch"] for batch in batches] == [0, 1], process.error_output()
    assert [batch and batch["records"] for batch in batches] == [step] * 2
    assert batches[-1] is not None
    assert batches[-1]["left"] == partitions * count - 2 * step

    with pytest.raises(
        CheckpointError, match="unfinished replay with another --where: it has none, this one offset > 1"
    ):
        prepare(Replay(broker.bootstrap, topic, target, where="offset > 1"), str(tmp_path / "checkpoint"), print)

    with JobProcess(command, errors, command="replay") as process:
        numbers = []
        while (batch := process.next_batch()) is not None:
            numbers.append(batch["batch"])
        assert process.wait() == 0, process.error_output()
    assert numbers[0] >= 2
    assert "resuming after" in process.error_output()
    for number in range(partitions):
        found = [json.loads(each.value or b"")["n"] for each in consume(broker, target, number)]
        # Everything in order, except one step back to the start of the interrupted batch.
        back = [at for at in range(1, len(found)) if found[at] <= found[at - 1]]
        assert len(back) <= 1
        cut = back[0] if back else len(found)
        assert found[:cut] == list(range(cut))
        again = found[cut:]
        assert again == (list(range(again[0], count)) if again else [])
        assert len(found) - count <= step
    assert not list((tmp_path / "checkpoint").rglob("*.json"))


def test_a_replay_ends_at_a_batch_that_nobody_can_decode_and_goes_on_without_it(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    step = 10
    create_topic(broker.bootstrap, topic)
    target = create_topic(broker.bootstrap, f"{topic}-target")
    send_json(broker.bootstrap, topic, [{"n": number} for number in range(step)])
    assert produce_batch(broker.port, topic, poison_batch([b"x"] * 3)) == step
    send_json(broker.bootstrap, topic, [{"n": number} for number in range(step, step + 5)])
    assert produce_batch(broker.port, topic, DAMAGES["a header without a name"]()) == step + 8
    send_json(broker.bootstrap, topic, [{"n": number} for number in range(step + 5, step + 9)])
    command = [topic, "--to", target, "--bootstrap", broker.bootstrap, "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--max-offsets-per-batch", str(step), "--master", "local[1]", "--conf", "spark.driver.memory=512m"]

    with JobProcess(command, tmp_path / "strict", command="replay") as process:
        first = process.next_batch()
        assert first is not None, process.error_output()
        assert (first["batch"], first["records"]) == (0, step)
        assert process.next_batch() is None
        assert process.wait() == 1
    problem = f"Error: the batch at offsets {step} to {step + 2} of {topic}-0 cannot be decoded: "
    assert problem in process.error_output()
    assert "--skip-corrupt" in process.error_output()
    assert [read["n"] for _, read in read_json(broker.bootstrap, target)] == list(range(step))

    with JobProcess([*command, "--skip-corrupt"], tmp_path / "lenient", command="replay") as process:
        records = []
        while (batch := process.next_batch()) is not None:
            records.append(batch["records"])
        assert process.wait() == 0, process.error_output()
    assert records == [5, 4]
    said = process.error_output().splitlines()
    assert "resuming after 1 batch" in said
    line = (
        f"{topic}-0: skipped 2 batches of 5 offsets that cannot be decoded, at offsets {step} to {step + 2}, "
        f"{step + 8} to {step + 9} ("
    )
    assert [each[: len(line)] for each in said if "skipped" in each] == [line], said
    # The strict replay wrote nothing of the batch in which it failed, so there are no duplicates.
    assert [read["n"] for _, read in read_json(broker.bootstrap, target)] == list(range(step + 9))
