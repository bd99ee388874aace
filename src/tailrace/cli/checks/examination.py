"""Runs the checks in order, and skips those that make no sense after what the earlier ones found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tailrace.cli.checks.finding import Finding, Status, problem, worst
from tailrace.cli.checks.machine import (
    check_backlog,
    check_clock,
    check_descriptors,
    check_packages,
    check_python,
    check_user,
    descriptor_limit,
    process_user,
)

Advance = Callable[[int], None]
#: Takes the number of bytes to read; yields a function that reports how many of them are done.
Progress = Callable[[int], AbstractContextManager[Advance]]

_MOUNTS = Path("/proc/self/mountinfo")


def examine(
    config_path: str | None, overrides: Mapping[str, str], *, is_deep: bool, progress: Progress
) -> Iterator[Finding]:
    """Yield everything that a broker with these options would run into, from its machine to its logs."""
    yield check_python()
    packages = check_packages()
    yield from packages
    if worst(packages) is Status.PROBLEM:
        yield problem(
            "doctor", "nothing else can be checked without these packages", "install them and run doctor again"
        )
        return
    yield from _examine_broker(config_path, overrides, is_deep, progress)


def _examine_broker(
    config_path: str | None, overrides: Mapping[str, str], is_deep: bool, progress: Progress
) -> Iterator[Finding]:
    # Imported here because all of these need the compiled packages.
    from tailrace.cli.checks import addresses, directories, logs, metadata, settings
    from tailrace.errors import StorageError

    config, findings = settings.check_settings(config_path, overrides)
    yield from findings
    broker_id = config.get_int("node.id")
    states = [directories.read_state(path) for path in config.get_list("log.dirs")]
    mounts = _MOUNTS.read_text() if _MOUNTS.exists() else ""
    contents: list[logs.Contents] = []
    for state in states:
        existing = directories.nearest_existing(state.path)
        yield from directories.check_place(state)
        yield from directories.check_mount(state.path, directories.find_mount(existing, mounts))
        yield from directories.check_space(state.path, os.statvfs(existing))
        if not state.exists:
            continue
        try:
            found, findings = logs.read_contents(state)
        except StorageError as error:
            yield problem(state.path, str(error), "run doctor as the broker's user; if the disk is faulty, replace it")
            continue
        contents.append(found)
        yield from findings
        if found.partitions and not state.is_running:
            yield from directories.check_stop(state, found.bytes_to_recover)
        yield from logs.check_leftovers(found)
        if is_deep:
            with progress(found.size) as advance:
                findings = logs.check_every_batch(found, advance)
        else:
            findings = logs.check_partitions(found)
        yield from findings

    is_running = any(state.is_running for state in states)
    has_logs = any(found.partitions for found in contents)
    image, findings = metadata.check_metadata(states[0].path, config, is_running=is_running, has_logs=has_logs)
    yield from findings
    if image is not None:
        identities = [
            finding
            for state in states
            if state.exists
            for finding in directories.check_identity(state.path, broker_id, image.cluster_id)
        ]
        yield from identities
        # The contents of another broker's directory say nothing about this broker.
        if not is_running and worst(identities) is Status.OK:
            yield from logs.check_ownership(contents, image, broker_id)

    pids = [state.pid for state in states if state.pid]
    for endpoint in config.listeners:
        yield addresses.check_listener(endpoint, pids)
    yield from addresses.check_metrics_port(config.get_str("metrics.host"), config.get_int("metrics.port"), pids)
    for endpoint in config.advertised_listeners:
        yield addresses.check_advertised(endpoint, config.listeners)

    pid = pids[0] if pids else None
    partitions = sum(len(found.partitions) for found in contents)
    open_files = config.get_int("tailrace.open.files.max")
    yield check_descriptors(descriptor_limit(pid), open_files, partitions, config.get_int("max.connections"))
    yield from check_backlog(config.get_int("socket.listen.backlog.size"))
    owners = [owner for state in states if state.exists for owner in directories.owners_of(state.path)]
    yield check_user(process_user(pid), owners)
    newest = [file for state in states if (file := directories.newest_file(state.path)) is not None]
    yield check_clock(time.time(), max(newest, default=None))
