"""Reads settings from a Java properties file or a TOML file.

Invariant: both kinds of file give the same flat names, each with the place where it was written. This module must not
know which names exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailrace.broker.config.types import as_text
from tailrace.errors import ConfigError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Setting(NamedTuple):
    """A setting, and the file (and line, if known) that contains it."""

    name: str
    value: object
    origin: str


def read_settings(path: str) -> list[Setting]:
    """Read a file, as TOML if it ends in .toml, else as properties; the last of several equal names counts."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The configuration file {path} is not UTF-8: {error.reason}") from error
    if os.path.splitext(path)[1].lower() == ".toml":
        return parse_toml(text, path)
    return parse_properties(text, path)


def parse_properties(text: str, path: str) -> list[Setting]:
    """Parse the text of a properties file, by the rules of java.util.Properties."""
    settings = []
    for number, line in _logical_lines(text):
        origin = f"{path}:{number}"
        end = _end_of_name(line)
        value = line[end:].lstrip(_BLANK)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_BLANK)
        settings.append(Setting(_unescape(line[:end], origin), _unescape(value, origin), origin))
    return settings


def parse_toml(text: str, path: str) -> list[Setting]:
    """Parse the text of a TOML file; dotted keys, tables and quoted keys give the same flat names."""
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path} is not TOML: {error}. If one key is the prefix of another, as max.connections is of "
            "max.connections.per.ip, put the longer one in quotes."
        ) from error
    settings = list(_flatten(tables, "", path))
    names = [setting.name for setting in settings]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path} sets {name} twice, once in quotes and once with dots")
    return settings


def _flatten(table: Mapping[str, object], prefix: str, path: str) -> Iterator[Setting]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}.", path)
        elif as_text(value) is None:
            raise ConfigError(
                f"Invalid value {value} for configuration {name}: Expected text, a number, a boolean or a flat "
                f"list of them ({path})"
            )
        else:
            yield Setting(name, value, path)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines and skip comments and blank lines; yield each with the number of its first line."""
    # Only these end a line in a properties file; str.splitlines would also split at \f or \x85.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    started: int | None = None
    joined = ""
    for number, natural in enumerate(lines, 1):
        line = natural.lstrip(_BLANK)
        if started is None:
            if not line or line[0] in "#!":
                continue
            started = number
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if continues else line
        if not continues:
            yield started, joined
            started, joined = None, ""
    if started is not None and joined:
        yield started, joined


def _end_of_name(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANK:
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str, origin: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            parts.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped != "u":
            parts.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise ConfigError(f"Malformed \\uxxxx encoding ({origin})")
        parts.append(chr(int(digits, 16)))
        position += 4
    try:
        # Java writes a character beyond U+FFFF as two escapes, its UTF-16 surrogate pair.
        return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ConfigError(f"Incomplete surrogate pair in \\uxxxx encoding ({origin})") from None
