"""The writer of generated Python: indented lines, unique names, and constants.

It knows nothing of the protocol; `decoding` and `encoding` decide what the lines mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Source:
    """One function under construction."""

    def __init__(self, constants: dict[str, object]) -> None:
        self._constants = dict(constants)
        self._names: dict[object, str] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._fresh = 0

    def line(self, text: str) -> None:
        """Add a line at the current indentation."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines added inside the block, under a line that ends in a colon."""
        self.line(head)
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.line("pass")
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        """An unused local name."""
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    def constant(self, key: object, value: object) -> str:
        """The name of a constant; the same name for the same key."""
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"c{len(self._names)}"
            self._constants[name] = value
        return name

    def literal(self, value: object) -> str:
        """An expression for an immutable value."""
        if value is None or isinstance(value, bool | int | str | bytes):
            return repr(value)
        return self.constant(("literal", value), value)

    def function(self, name: str, title: str) -> Any:
        """Compile the lines and return the function with that name."""
        text = "\n".join(self._lines) + "\n"
        exec(compile(text, f"<{title}>", "exec"), self._constants)
        return self._constants[name]
