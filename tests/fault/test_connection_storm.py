"""Many clients connect at once, as after a restart of a broker: each connects at the first attempt."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

from tailrace.wire.messages.api_versions import ApiVersionsRequest
from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.clients.raw_client import request_frame

_CLIENTS = 2_000
_ESTABLISHED = 1
#: Where `struct tcp_info` says how many segments were sent again.
_TOTAL_RETRANS_AT = 100
_ANSWER_SECONDS = 120


def _state_and_retransmissions(client: socket.socket) -> tuple[int, int]:
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return info[0], struct.unpack_from("=I", info, _TOTAL_RETRANS_AT)[0]


def test_two_thousand_clients_that_come_at_once_are_all_let_in(tmp_path: Path) -> None:
    allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
    count = min(_CLIENTS, allowed - 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 500), hard), hard))
    frame = request_frame(ApiVersionsRequest(), 0)
    with WatchedBroker(tmp_path / "data") as broker, ExitStack() as stack:
        # The broker is too busy to accept: only the kernel decides which connections succeed.
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            clients = [stack.enter_context(socket.socket()) for _ in range(count)]
            for client in clients:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", broker.port))
            # Over loopback a handshake is over when `connect` returns, unless its first segment was dropped.
            seen = [_state_and_retransmissions(client) for client in clients]
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        dropped = sum(state != _ESTABLISHED or again > 0 for state, again in seen)
        assert dropped == 0, f"{dropped} of {count} connections were dropped at the door"
        for client in clients:
            client.settimeout(_ANSWER_SECONDS)
            client.sendall(frame)
        for client in clients:
            assert client.recv(4), "the broker closed a connection"
