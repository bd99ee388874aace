"""A proxy in front of a broker that can hold back the replica fetchers of chosen brokers.

It makes a broker that is half dead: it has its session in the store, answers its clients, and does not fetch. Owns a
listening socket on loopback and the threads that pass bytes on. It must not know why. Brokers are told of the door by
`advertised.listeners`; who connects is told by the client id in its first request.
"""

from __future__ import annotations

import re
import socket
import struct
import threading

from tests.support.brokers.broker_process import free_port

_CHUNK_BYTES = 1 << 16
_HEADER = struct.Struct(">ihhih")
_FETCHER = re.compile(rb"broker-(\d+)-fetcher-")


class FetchBarrier:
    """The proxy of one broker; a context manager."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._changed = threading.Condition()
        self._held: set[int] = set()
        self._sockets: list[socket.socket] = []
        self._listening: socket.socket | None = None

    def __enter__(self) -> FetchBarrier:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._listening is not None
        self.release()
        # Closing alone would not wake up threads that accept or receive.
        for each in [self._listening, *self._sockets]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def hold(self, *brokers: int) -> None:
        """Hold back the replica fetchers of these brokers; their connections stay."""
        with self._changed:
            self._held.update(brokers)

    def release(self) -> None:
        """Let everything pass, including what waits."""
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                near.close()  # as if nobody listened
                continue
            self._sockets += [near, far]
            for one, other, asks in ((near, far, True), (far, near, False)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass_on, args=(one, other, asks), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        first = b""
        broker: int | None = None
        try:
            while data := source.recv(_CHUNK_BYTES):
                if asks and len(first) < _CHUNK_BYTES and broker is None:
                    first += data
                    broker = _fetching_broker(first)
                if broker is not None:
                    self._wait_to_pass(broker)
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _wait_to_pass(self, broker: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: broker not in self._held)


def _fetching_broker(data: bytes) -> int | None:
    """The broker whose replica fetcher sent a request, if it was one."""
    if len(data) < _HEADER.size:
        return None
    *_, length = _HEADER.unpack_from(data)
    found = _FETCHER.match(data[_HEADER.size : _HEADER.size + max(length, 0)])
    return None if found is None else int(found[1])
