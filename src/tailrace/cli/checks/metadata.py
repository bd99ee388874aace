"""Checks the metadata store, of a single broker or of a cluster: its integrity, format, and topic configurations.

Works on a copy in a temporary directory: even opening a SQLite file may write beside it, and a broker that finds an
empty store writes to it. Reads the copy with the same code as a broker, so that both refuse the same stores.
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
from tailrace.cli.metadata_copy import batches, read_entries
from tailrace.cli.output import count_of
from tailrace.cli.run_broker import STORE_FILE
from tailrace.cluster.image import ALL_BROKERS, ClusterImage
from tailrace.cluster.keys import CLUSTER_ID, MOVED_TO
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.store import Entry, Store, Unavailable, Write
from tailrace.errors import ConfigError, StorageError
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.tasks import Tasks
from tailrace.stores.opening import open_store, without_password
from tailrace.stores.sqlite import SqliteStore

SUBJECT = "metadata"
_RESTORE = "stop the broker and restore the file from a backup (docs/operations.md)"
_MOST_ERRORS = 3
_SQLITE = "sqlite:"


def check_metadata(
    directory: str, config: BrokerConfig, *, is_running: bool, has_logs: bool
) -> tuple[ClusterImage | None, list[Finding]]:
    """Return what a broker would read from its metadata store, or None, and the findings."""
    url = config.get_optional_str("tailrace.coordination")
    with tempfile.TemporaryDirectory(prefix="tailrace-doctor-") as scratch:
        copy = f"{scratch}/{STORE_FILE}"
        if url is None or url.lower().startswith(_SQLITE):
            path = f"{directory}/{STORE_FILE}" if url is None else url[len(_SQLITE) :].removeprefix("//")
            exists = os.path.exists(path)
            findings = _copy_file(path, copy, is_running, is_own=url is None) if exists else []
        else:
            path = without_password(url)
            exists, findings = _copy_shared(url, copy)
        if findings:
            return None, findings
        try:
            image = asyncio.run(_load(copy, config, has_logs))
        except (StorageError, Unavailable) as error:
            return None, [_refusal(str(error).replace(copy, path))]
        except sqlite3.Error as error:
            return None, [problem(SUBJECT, f"{path} is not a valid database: {error}", _RESTORE)]
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


def _refusal(text: str) -> Finding:
    """Split an error of the broker into what is wrong and what to do."""
    wrong, separator, advice = text.rpartition(": ")
    return problem(SUBJECT, wrong, advice) if separator else problem(SUBJECT, text, _RESTORE)


def _copy_file(path: str, copy: str, is_running: bool, *, is_own: bool) -> list[Finding]:
    """Copy the file of a single broker; return what keeps a broker from using it."""
    try:
        _copy_store(path, copy, is_running)
        errors = _integrity_errors(copy)
        if errors:
            return [problem(SUBJECT, f"{path} is damaged: {'; '.join(errors)}", _RESTORE)]
        moved = asyncio.run(_read(SqliteStore(copy), MOVED_TO)) if is_own else None
    except StorageError as error:
        return [_refusal(str(error).replace(copy, path))]
    except sqlite3.Error as error:
        return [problem(SUBJECT, f"{path} is not a valid database: {error}", _RESTORE)]
    except OSError as error:
        return [problem(SUBJECT, f"{path} cannot be read: {error.strerror}", "run doctor as the broker's user")]
    if moved is None:
        return []
    target = moved.value.decode()
    return [problem(SUBJECT, f"the metadata of this broker was moved to {target}", f"add --coordination {target}")]


def _copy_shared(url: str, copy: str) -> tuple[bool, list[Finding]]:
    """Copy the store of a cluster; return whether it has a cluster yet, and what keeps a broker from using it."""
    try:
        return asyncio.run(_copy_entries(url, copy)), []
    except ConfigError as error:
        return False, [problem(SUBJECT, str(error), "correct tailrace.coordination, or install what is missing")]
    except Unavailable as error:
        text = f"cannot read {without_password(url)}: {error}"
        return False, [problem(SUBJECT, text, "start the store, or correct tailrace.coordination")]


async def _copy_entries(url: str, copy: str) -> bool:
    source = open_store(url, SystemClock())
    try:
        cluster_id = await source.get(CLUSTER_ID)
        if cluster_id is None:
            return False
        entries = [cluster_id, *await read_entries(source)]
    finally:
        await source.close()
    target = SqliteStore(copy)
    try:
        for batch in batches(entries):
            await target.txn([], [Write(entry.key, entry.value) for entry in batch])
    finally:
        await target.close()
    return True


async def _read(store: Store, key: str) -> Entry | None:
    try:
        return await store.get(key)
    finally:
        await store.close()


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
