"""The checks of `tailrace doctor` that need no data directory: each finds its problem, and nothing otherwise."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.config.broker_config import Endpoint
from tailrace.cli.checks.addresses import check_advertised, check_listener, check_metrics_port, listening_on
from tailrace.cli.checks.directories import (
    Mount,
    State,
    check_mount,
    check_place,
    check_space,
    find_mount,
    nearest_existing,
    read_state,
)
from tailrace.cli.checks.finding import Finding, Status, ok, problem, size_text, some, warning, worst
from tailrace.cli.checks.machine import (
    check_backlog,
    check_clock,
    check_descriptors,
    check_packages,
    check_python,
    check_user,
    descriptor_limit,
)
from tailrace.cli.checks.settings import check_settings

OK, WARNING, PROBLEM = Status
NOW = 1_800_000_000.0


def statuses(findings: list[Finding]) -> list[Status]:
    return [finding.status for finding in findings]


def test_warnings_and_problems_say_what_to_do() -> None:
    assert ok("a", "b").advice is None
    assert warning("a", "b", "do").advice == problem("a", "b", "do").advice == "do"
    assert worst([]) is OK
    assert worst([ok("a", "b"), problem("a", "b", "do"), warning("a", "b", "do")]) is PROBLEM


def test_sizes_and_names_are_short() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 3 << 29, 5 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1.5 GiB",
        "5.0 TiB",
    ]
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


# --- configuration


def test_no_configuration_is_fine() -> None:
    config, findings = check_settings(None, {})
    assert statuses(findings) == [OK]
    assert config.get_int("node.id") == 1


def test_every_mistake_is_found_and_the_rest_still_counts(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.retention.hour=3\nnum.partitions=none\nnode.id=7\nlisteners=SSL://:1\n")
    config, findings = check_settings(str(path), {"max.connections": "-5"})
    assert statuses(findings) == [PROBLEM] * 4
    together = " ".join(finding.text for finding in findings)
    assert "did you mean log.retention.hours?" in together
    for place in (f"{path}:1", f"{path}:2", f"{path}:4", "command line"):
        assert place in together
    assert config.get_int("node.id") == 7
    assert config.get_int("num.partitions") == 1


def test_a_contradiction_of_two_keys_is_told_once() -> None:
    _, findings = check_settings(None, {"node.id": "1", "broker.id": "2", "num.partitions": "3"})
    assert statuses(findings) == [PROBLEM]


def test_a_file_that_is_not_toml_is_a_problem_and_the_command_line_still_counts(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.toml"
    path.write_text("this is not toml")
    config, findings = check_settings(str(path), {"node.id": "9"})
    assert statuses(findings) == [PROBLEM]
    assert config.get_int("node.id") == 9


def test_keys_without_effect_are_warned_about() -> None:
    _, findings = check_settings(None, {"num.io.threads": "8"})
    assert statuses(findings) == [WARNING]
    assert "num.io.threads has no effect" in findings[0].text


def test_more_replicas_than_brokers_are_warned_about() -> None:
    _, findings = check_settings(None, {"default.replication.factor": "3", "min.insync.replicas": "2"})
    assert statuses(findings) == [WARNING, WARNING]


# --- the machine


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 9), WARNING), ((3, 11, 0), OK), ((3, 14, 8), OK), ((3, 15, 0), WARNING)]
)
def test_the_python_versions_are_those_of_the_package(version: tuple[int, int, int], status: Status) -> None:
    assert check_python(version).status is status


def test_the_pythons_that_are_tested_are_those_of_pyproject() -> None:
    import tomllib

    from tailrace.cli.checks.machine import NEWEST_PYTHON, OLDEST_PYTHON

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, OLDEST_PYTHON))}"
    start = "Programming Language :: Python :: "
    named = [each.removeprefix(start) for each in project["classifiers"] if each.startswith(start)]
    assert (named[0], named[-1]) == tuple(".".join(map(str, each)) for each in (OLDEST_PYTHON, NEWEST_PYTHON))


def test_all_compiled_packages_are_named_with_their_versions() -> None:
    (found,) = check_packages()
    assert found.status is OK
    for name in ("crc32c", "lz4", "zstandard", "cramjam", "uvloop"):
        assert f"{name} " in found.text


@pytest.mark.parametrize(("missing", "status"), [("lz4", PROBLEM), ("uvloop", WARNING)])
def test_a_package_that_does_not_load_is_found(missing: str, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, missing, None)  # as an import sees a package that is broken
    findings = check_packages()
    assert statuses(findings) == [OK, status]
    assert missing in findings[1].text
    assert f"pip install --force-reinstall {missing}" in (findings[1].advice or "")


@pytest.mark.parametrize(
    ("limit", "given", "partitions", "connections", "status"),
    [
        (1 << 20, 0, 1000, 2**31 - 1, OK),
        (1024, 0, 10, 2**31 - 1, WARNING),
        (8192, 0, 2000, 2**31 - 1, WARNING),
        (8192, 0, 10, 5000, WARNING),
        (8192, 0, 10, 4000, OK),
        (8192, 8192, 10, 100, PROBLEM),
        (40, 0, 10, 100, PROBLEM),
    ],
)
def test_descriptors_are_held_against_partitions_and_connections(
    limit: int, given: int, partitions: int, connections: int, status: Status
) -> None:
    assert check_descriptors(limit, given, partitions, connections).status is status


def test_the_limit_of_a_running_process_is_its_own() -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert descriptor_limit(os.getpid()) == soft
    assert descriptor_limit(None) >= soft


def test_a_backlog_above_the_kernels_is_warned_about() -> None:
    assert statuses(check_backlog(50, "4096\n")) == [OK]
    assert statuses(check_backlog(5000, "4096\n")) == [WARNING]


def test_a_clock_that_cannot_be_right_is_found() -> None:
    assert check_clock(NOW, None).status is OK
    assert check_clock(NOW, (NOW + 10, "a file")).status is OK
    assert check_clock(NOW, (NOW + 3600, "a file")).status is WARNING
    assert check_clock(86400.0, None).status is PROBLEM


def test_files_of_another_user_are_found() -> None:
    assert check_user(1000, [("data", 1000)]).status is OK
    found = check_user(1000, [("data", 1000), ("data/meta.properties", 0)])
    assert found.status is WARNING
    assert "data/meta.properties belongs to root" in found.text


# --- directories


MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 21 0:25 / /tmp rw,nosuid - tmpfs tmpfs rw,size=100k
31 21 8:2 / /var/lib/my\\040data rw,noatime - xfs /dev/sdb1 rw,nobarrier
32 21 0:40 / /mnt/share rw - nfs4 server:/share rw,vers=4.2
33 21 8:3 / /frozen ro - ext4 /dev/sdc1 ro
"""


@pytest.mark.parametrize(
    ("path", "kind", "status", "word"),
    [
        ("/srv/data", "ext4", OK, "ext4 on / "),
        ("/tmp/data", "tmpfs", WARNING, "memory"),
        ("/tmpfoo", "ext4", OK, "ext4"),
        ("/var/lib/my data/x", "xfs", WARNING, "nobarrier"),
        ("/mnt/share", "nfs4", WARNING, "network"),
        ("/frozen/data", "ext4", PROBLEM, "read-only"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, kind: str, status: Status, word: str) -> None:
    mount = find_mount(path, MOUNTS)
    assert mount is not None
    assert mount.kind == kind
    (found,) = check_mount(path, mount)
    assert found.status is status
    assert word in found.text


def test_a_containers_own_layer_is_warned_about() -> None:
    (found,) = check_mount("/data", Mount("/", "overlay", ("rw",)))
    assert found.status is WARNING
    assert "volume" in (found.advice or "")


def space(free: int, total: int, *, files: int = 1 << 20, free_files: int = 1 << 19) -> os.statvfs_result:
    blocks = 4096
    return os.statvfs_result(
        (blocks, blocks, total // blocks, free // blocks, free // blocks, files, free_files, free_files, 0, 255)
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (space(50 << 30, 100 << 30), [OK]),
        (space(4 << 30, 100 << 30), [WARNING]),
        (space(900 << 20, 2 << 30), [WARNING]),
        (space(10 << 20, 100 << 30), [PROBLEM]),
        (space(50 << 30, 100 << 30, free_files=10), [OK, WARNING]),
        (space(50 << 30, 100 << 30, files=0, free_files=0), [OK]),
    ],
)
def test_free_space_and_inodes_are_looked_at(found: os.statvfs_result, expected: list[Status]) -> None:
    assert statuses(check_space("data", found)) == expected


def test_a_directory_that_can_be_made_is_fine_and_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    state = read_state(str(path))
    assert state == State(str(path), exists=False, pid=None, stopped_cleanly=False)
    assert statuses(check_place(state)) == [OK]
    assert nearest_existing(str(path)) == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert statuses(check_place(read_state(str(tmp_path / "file" / "data")))) == [PROBLEM]


# --- ports and addresses


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def endpoint(host: str, port: int) -> Endpoint:
    return Endpoint("PLAINTEXT", host, port, "PLAINTEXT")


def test_a_port_in_use_is_a_problem_and_says_whose_it_is(taken: int) -> None:
    found = check_listener(endpoint("127.0.0.1", taken), [])
    assert found.status is PROBLEM
    assert f"(pid {os.getpid()})" in found.text
    assert [owner.pid for owner in listening_on(taken)] == [os.getpid()]


def test_the_port_of_the_running_broker_is_fine(taken: int) -> None:
    assert check_listener(endpoint("127.0.0.1", taken), [os.getpid()]).status is OK


def test_the_monitoring_port_is_looked_at_where_there_shall_be_one(taken: int) -> None:
    assert check_metrics_port("127.0.0.1", -1, []) == []
    assert statuses(check_metrics_port("127.0.0.1", taken, [])) == [PROBLEM]
    assert statuses(check_metrics_port("127.0.0.1", 0, [])) == [OK]


def test_a_free_port_is_fine_and_stays_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert check_listener(endpoint("127.0.0.1", port), []).status is OK
    assert check_listener(endpoint("", port), []).status is OK
    assert check_listener(endpoint("127.0.0.1", 0), []).status is OK
    assert list(listening_on(port)) == []


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7"])
def test_an_address_of_no_interface_here_is_a_problem(host: str) -> None:
    assert check_listener(endpoint(host, 9092), []).status is PROBLEM


def test_an_advertised_name_must_be_known() -> None:
    listener = endpoint("0.0.0.0", 9092)
    assert check_advertised(endpoint("no-such-host.invalid", 9092), [listener]).status is PROBLEM
    assert check_advertised(endpoint("203.0.113.7", 9092), [listener]).status is OK


def test_a_loopback_address_is_advertised_only_where_nobody_else_is_expected() -> None:
    loopback = endpoint("127.0.0.1", 9092)
    assert check_advertised(loopback, [loopback]).status is OK
    assert check_advertised(loopback, [endpoint("0.0.0.0", 9092)]).status is WARNING
