"""A proxy in front of a broker that loses some requests or answers, as a broken network does.

Owns a listening socket on loopback and a thread for each connection, each of which carries one request at a time. It
must not know why.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

from tests.support.brokers.broker_process import free_port

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")


class LossyDoor:
    """The proxy of one broker; a context manager."""

    def __init__(self, target_port: int, api_key: int, lost_answers: int, on_lost: Callable[[], object]) -> None:
        self.port = free_port()
        #: How many more answers to lose; after `on_lost` has returned, the connection of each ends.
        self.lost_answers = lost_answers
        self.lost_requests = 0
        self._target_port = target_port
        self._api_key = api_key
        self._on_lost = on_lost
        self._listening: socket.socket | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> LossyDoor:
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._listening is not None
        # Closing alone would not wake up the thread that accepts.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                return  # as if nobody listened
            with far:
                self._pass_on(near, far)

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        while (request := _receive(near)) is not None:
            may_be_lost = _API_KEY.unpack_from(request, _LENGTH.size)[0] == self._api_key
            if may_be_lost and self.lost_requests:
                self.lost_requests -= 1
                self._on_lost()
                return
            try:
                far.sendall(request)
            except OSError:
                return
            answer = _receive(far)
            if answer is None:
                return
            if may_be_lost and self.lost_answers:
                self.lost_answers -= 1
                self._on_lost()
                return
            near.sendall(answer)


def _receive(source: socket.socket) -> bytes | None:
    """A whole frame with its length; None where the connection has ended."""
    data = b""
    missing = _LENGTH.size
    while missing > 0:
        try:
            part = source.recv(missing)
        except OSError:
            return None
        if not part:
            return None
        data += part
        missing = _LENGTH.size - len(data)
        if missing <= 0:
            missing += _LENGTH.unpack_from(data)[0]
    return data
