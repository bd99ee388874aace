"""Every message that `tailrace.wire.messages` describes, found there, so that none is left out of a test."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from tailrace.wire import messages
from tailrace.wire.codec import Message


def _messages() -> Iterator[type[Message]]:
    for found in iter_modules(messages.__path__, f"{messages.__name__}."):
        module = import_module(found.name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value.__module__ == module.__name__:
                yield value


def _by_key(suffix: str) -> dict[int, type[Message]]:
    wanted = [message for message in _messages() if message.__name__.endswith(suffix)]
    return {message.API_KEY: message for message in sorted(wanted, key=lambda message: message.API_KEY)}


REQUESTS = _by_key("Request")
RESPONSES = _by_key("Response")
