"""Checks the metadata store: its integrity, its format, and the configuration of topics in it.

Works on a copy in a temporary directory, because even opening a SQLite file may write beside it. Reads the copy with
the same code as a broker, so that both refuse the same stores.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from random import Random
from urllib.parse import quote

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.cli.checks.finding import Finding, ok, problem, warning
from tailrace.cli.output import count_of
from tailrace.cli.run_broker import STORE_FILE
from tailrace.cluster.image import ALL_BROKERS, ClusterImage
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.store import Unavailable
from tailrace.errors import ConfigError, StorageError
from tailrace.runtime.tasks import Tasks
from tailrace.stores.sqlite import SqliteStore

SUBJECT = "metadata"
_RESTORE = "stop the broker and restore the file from a backup (docs/operations.md)"
_MOST_ERRORS = 3


def check_metadata(
    directory: str, config: BrokerConfig, *, is_running: bool, has_logs: bool
) -> tuple[ClusterImage | None, list[Finding]]:
    """Return what a broker would read from the store of its first log directory, or None, and the findings."""
    path = f"{directory}/{STORE_FILE}"
    exists = os.path.exists(path)
    with tempfile.TemporaryDirectory(prefix="tailrace-doctor-") as scratch:
        copy = f"{scratch}/{STORE_FILE}"
        try:
            if exists:
                _copy_store(path, copy, is_running)
                errors = _integrity_errors(copy)
                if errors:
                    return None, [problem(SUBJECT, f"{path} is damaged: {'; '.join(errors)}", _RESTORE)]
            image = asyncio.run(_load(copy, config, has_logs))
        except (StorageError, Unavailable) as error:
            text, separator, advice = str(error).replace(copy, path).rpartition(": ")
            return None, [problem(SUBJECT, text, advice) if separator else problem(SUBJECT, advice, _RESTORE)]
        except sqlite3.Error as error:
            return None, [problem(SUBJECT, f"{path} is not a valid database: {error}", _RESTORE)]
        except OSError as error:
            return None, [
                problem(SUBJECT, f"{path} cannot be read: {error.strerror}", "run doctor as the broker's user")
            ]
        except (ValueError, KeyError, TypeError) as error:
            return None, [problem(SUBJECT, f"an entry of {path} does not decode: {error!r}", _RESTORE)]
    if not exists:
        return image, [ok(SUBJECT, f"it does not exist yet; the first start creates {path}")]
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    topics = count_of(len(image.topics), "topic")
    text = f"{path} is sound: cluster {image.cluster_id}, {topics}, {count_of(partitions, 'partition')}"
    findings = [ok(SUBJECT, text), *_check_topic_configs(image, config)]
    dynamic = config.set_dynamic(image.configs_of(ALL_BROKERS), image.configs_of(str(config.get_int("node.id"))))
    findings += [
        warning(SUBJECT, left_out, "set it again, or start the version that accepted it") for left_out in dynamic
    ]
    return image, findings


def _copy_store(path: str, copy: str, is_running: bool) -> None:
    """Copy a consistent snapshot of the store."""
    if is_running:
        # The broker has it open: only SQLite can copy a consistent snapshot. A reader does not disturb the broker.
        uri = f"file:{quote(os.path.abspath(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=5)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return
    shutil.copyfile(path, copy)
    if os.path.exists(path + "-wal"):  # commits of a killed broker that are not in the file yet
        shutil.copyfile(path + "-wal", copy + "-wal")


def _integrity_errors(copy: str) -> list[str]:
    with closing(sqlite3.connect(copy)) as connection:
        rows = connection.execute(f"PRAGMA integrity_check({_MOST_ERRORS})").fetchall()
    return [str(row[0]) for row in rows if row[0] != "ok"]


async def _load(copy: str, config: BrokerConfig, has_logs: bool) -> ClusterImage:
    store = SqliteStore(copy)
    try:
        metadata = ClusterMetadata(store, Random(), config.get_int("node.id"), Tasks(_nothing_runs))
        await metadata.load(config.get_optional_str("cluster.id"), has_logs=has_logs)
        return metadata.image
    finally:
        await store.close()


def _nothing_runs(error: BaseException) -> None:
    """Never called: loading starts no tasks."""


def _check_topic_configs(image: ClusterImage, config: BrokerConfig) -> list[Finding]:
    """Check that this version knows every setting that is stored with a topic."""
    findings = []
    for topic in image.topics.values():
        try:
            config.topic_config(topic.configs)
        except ConfigError as refusal:
            advice = "start the newer version of tailrace that wrote it"
            findings.append(problem(SUBJECT, f"topic {topic.name}: {refusal}", advice))
    return findings
