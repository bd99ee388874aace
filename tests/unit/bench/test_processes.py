"""What is read of server processes, and how they are ended."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.clients.idle import idle_connections
from bench.clients.programs import beside, parse_result, rdbench, result_of, with_costs
from bench.clients.server import Handle
from bench.harness import page_cache, processes
from bench.harness.failures import ClientFailedError, ServerFailedError
from bench.harness.machine import filesystem_of
from bench.harness.processes import ServerProcess
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.api_versions import ApiVersionsResponse

TICKS = processes.TICKS_PER_SECOND


def test_cpu_time_is_that_of_the_process_and_its_ended_children_behind_a_name_with_brackets() -> None:
    fields = ["S", "7", *["0"] * 9, str(3 * TICKS), str(TICKS // 2), str(TICKS), str(TICKS), *["0"] * 4, "4711", "0"]
    text = f"12 (a) b (x) {' '.join(fields)}"
    assert processes.stat_fields(text) == (7, 5.5)
    assert processes.own_cpu_seconds(text) == 3.5
    assert processes.start_ticks(text) == 4711


def test_memory_is_read_in_millions_of_bytes() -> None:
    text = "Name:\tx\nVmHWM:\t 9000 kB\nVmRSS:\t    1000 kB\n"
    assert processes.status_mb(text, "VmRSS") == 1.024
    assert processes.status_mb(text, "VmSwap") == 0.0


def test_this_process_uses_memory_and_cpu() -> None:
    assert processes.rss_mb([os.getpid()]) > 5
    assert processes.cpu_seconds([os.getpid()]) > 0
    assert list(processes.cpu_by_process([os.getpid()])) == [os.getpid()]
    assert os.getpid() in processes.process_tree(os.getppid())


CHILD_THAT_OUTLIVES = """
import subprocess, time
subprocess.Popen(["sleep", "600"])
print("up", flush=True)
time.sleep(600)
"""


def test_stopping_a_server_ends_it_and_what_it_started(tmp_path: Path) -> None:
    server = ServerProcess([sys.executable, "-c", CHILD_THAT_OUTLIVES], tmp_path / "output")
    deadline = time.monotonic() + 30
    while "up" not in server.output_tail():
        assert time.monotonic() < deadline
    tree = server.tree()
    assert len(tree) == 2
    server.stop()
    while any(_runs(pid) for pid in tree):
        assert time.monotonic() < deadline


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # Nobody may have reaped an orphan yet: it runs no longer.
    return state[state.rindex(")") + 2] != "Z"


def test_a_server_that_ends_while_it_is_waited_for_is_reported_with_its_output(tmp_path: Path) -> None:
    server = ServerProcess([sys.executable, "-c", "print('no such setting'); raise SystemExit(3)"], tmp_path / "output")
    with pytest.raises(ServerFailedError, match=r"(?s)ended with 3.*no such setting"):
        processes.wait_for_port(processes.free_port(), server)
    server.stop()


def test_waiting_ends_when_the_port_accepts(tmp_path: Path) -> None:
    server = ServerProcess(["sleep", "600"], tmp_path / "output")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        processes.wait_for_port(listener.getsockname()[1], server)
    server.stop()


def test_only_the_numbers_of_a_clients_result_are_kept() -> None:
    output = '{"messages": 10, "seconds": 0.5, "complete": true, "spread": "round-robin"}'
    assert parse_result(["client"], 0, output, "") == {"messages": 10.0, "seconds": 0.5}


def test_a_client_that_fails_or_prints_no_json_is_an_error() -> None:
    with pytest.raises(ClientFailedError, match="exit code 1: refused"):
        parse_result(["client"], 1, "", "refused\n")
    with pytest.raises(ClientFailedError, match="not JSON"):
        parse_result(["client"], 0, "hello", "")


def test_a_client_beside_something_gives_its_result_at_its_end_and_is_ended_with_the_block() -> None:
    command = [sys.executable, "-c", "print('{\"messages\": 3}')"]
    with beside(command) as process:
        assert result_of(process, command) == {"messages": 3.0}
    with pytest.raises(ValueError), beside(["sleep", "600"]) as process:
        raise ValueError
    assert process.returncode == -9


def test_costs_are_the_servers_cpu_for_each_gb_million_messages_and_request() -> None:
    metrics = with_costs({"bytes": 2e9, "messages": 4e6, "requests": 1e5}, {"server_cpu_s": 3.0, "rss_mb": 40.0})
    assert metrics["cpu_s_per_gb"] == 1.5
    assert metrics["cpu_s_per_million"] == 0.75
    assert metrics["cpu_us_per_request"] == pytest.approx(30)
    assert metrics["rss_mb"] == 40.0


def test_options_become_flags() -> None:
    command = rdbench("produce", Handle("127.0.0.1", 9, 1), "t", batch_bytes=16384, one_message=True, warm=False)
    assert command[1:6] == ["produce", "--bootstrap", "127.0.0.1:9", "--topic", "t"]
    assert command[6:] == ["--batch-bytes", "16384", "--one-message"]


def test_the_file_system_is_that_of_the_deepest_mount() -> None:
    mounts = "dev / ext4 rw 0 0\nproc /proc proc rw 0 0\ntmp /nowhere tmpfs rw 0 0\n"
    assert filesystem_of(Path("/proc/self"), mounts) == "proc"
    assert filesystem_of(Path("/usr"), mounts) == "ext4"


def test_small_files_are_not_counted_as_data(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(bytes(page_cache.SMALLEST_BYTES))
    assert [path.name for path in page_cache.large_files(tmp_path)] == ["large"]
    assert page_cache.resident_share(tmp_path) == 1.0
    page_cache.drop(tmp_path)
    assert (tmp_path / "large").read_bytes() == bytes(page_cache.SMALLEST_BYTES)


def test_idle_connections_are_open_until_the_block_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []
        answers = threading.Thread(target=_answer, args=(listener, accepted, 3))
        answers.start()
        with idle_connections(Handle("127.0.0.1", listener.getsockname()[1], 1), 3):
            answers.join()
            for connection in accepted:
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)
        for connection in accepted:
            connection.setblocking(True)
            assert connection.recv(1) == b""
            connection.close()


def _answer(listener: socket.socket, accepted: list[socket.socket], count: int) -> None:
    for _ in range(count):
        connection, _ = listener.accept()
        accepted.append(connection)
        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        api_key, version, correlation_id = struct.unpack(">hhi", connection.recv(length, socket.MSG_WAITALL)[:8])
        assert api_key == ApiKey.API_VERSIONS
        body = ApiVersionsResponse().encode(version)
        connection.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)
