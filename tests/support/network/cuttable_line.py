"""A TCP line on loopback that can be cut: connections stay, and nothing passes any more in either direction.

Owns a listening socket and two threads for each connection. It must not know what is said over it.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.brokers.broker_process import free_port

_PIECE_BYTES = 1 << 16


class CuttableLine:
    """A line to a port; a context manager."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._is_closed = False
        self._sockets: list[socket.socket] = []

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Let nothing pass and no connection open, like a network that drops every packet."""
        self._is_whole.clear()

    def passing(self, source: socket.socket, data: bytes) -> None:
        """Called before something passes."""

    def mend(self) -> None:
        """Let waiting and later bytes pass."""
        self._is_whole.set()

    def __enter__(self) -> CuttableLine:
        self._sockets.append(socket.create_server(("127.0.0.1", self.port)))
        threading.Thread(target=self._accept, args=(self._sockets[0],), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        for each in list(self._sockets):
            # Closing alone would not wake up a thread that waits for it.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.mend()

    def _accept(self, listening: socket.socket) -> None:
        while not self._is_closed:
            try:
                near, _ = listening.accept()
                self._sockets.append(near)
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()
            except OSError:
                return

    def _connect(self, near: socket.socket) -> None:
        self._is_whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            near.close()  # as if nobody listened
            return
        self._sockets.append(far)
        threading.Thread(target=self._pass_on, args=(far, near), daemon=True).start()
        self._pass_on(near, far)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                self._is_whole.wait()
                self.passing(source, data)
                target.sendall(data)
        self._is_whole.wait()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
