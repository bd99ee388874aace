"""What a configuration key is: its type, the values it allows, and the conversion from and to text.

Invariant: a refusal reads like Kafka's, "Invalid value x for configuration y: why". This module must not know any key
by name, nor where a value was written.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol, TypeAlias

from tailrace.archive.errors import ArchiveError
from tailrace.archive.location import parse_uri
from tailrace.errors import ConfigError

#: A parsed value; None if a key has no value of its own.
Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

UpdateMode: TypeAlias = Literal["read-only", "per-broker", "cluster-wide"]
Importance: TypeAlias = Literal["high", "medium", "low"]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = sys.float_info.max


class ConfigType(IntEnum):
    """The type of a value, numbered as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, numbered as in DescribeConfigs; the lowest number takes precedence."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6


class Given(NamedTuple):
    """A value that was given for a key, as Kafka's tools show it, and its source."""

    name: str
    value: str | None
    source: ConfigSource


_WIDTH_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


class Valid(Protocol):
    """A rule that checks a parsed value and can be printed."""

    def problem(self, value: Value) -> str | None:
        """Return why the value is refused, or None if it is allowed."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number with a lower bound, and perhaps one special value below it."""

    minimum: int
    special: int | None = None

    def problem(self, value: Value) -> str | None:
        """Return why the number is refused."""
        if not isinstance(value, int | float) or value >= self.minimum or value == self.special:
            return None
        exception = "" if self.special is None else f", or {self.special}"
        return f"Value must be at least {self.minimum}{exception}"

    def __str__(self) -> str:
        interval = f"[{self.minimum},...]"
        return interval if self.special is None else f"{self.special} or {interval}"


@dataclass(frozen=True, slots=True)
class Between:
    """A number with two bounds, and perhaps one special value outside of them."""

    minimum: int
    maximum: int
    special: int | None = None

    def problem(self, value: Value) -> str | None:
        """Return why the number is refused."""
        if not isinstance(value, int | float) or value == self.special:
            return None
        exception = "" if self.special is None else f", or {self.special}"
        if value < self.minimum:
            return f"Value must be at least {self.minimum}{exception}"
        if value > self.maximum:
            return f"Value must be no more than {self.maximum}{exception}"
        return None

    def __str__(self) -> str:
        interval = f"[{self.minimum},...,{self.maximum}]"
        return interval if self.special is None else f"{self.special} or {interval}"


@dataclass(frozen=True, slots=True)
class CountsByAddress:
    """A list of `address:count` with unique addresses; brackets around IPv6 addresses are optional."""

    def problem(self, value: Value) -> str | None:
        """Return what is wrong with the first invalid item."""
        seen: list[str] = []
        for item in value if isinstance(value, tuple) else ():
            address, _, count = item.rpartition(":")
            if not address or not count.isascii() or not count.isdigit():
                return f"'{item}' is not of the form address:count"
            if not _is_address(address.strip("[]")):
                return f"'{address}' is not an IP address"
            if address in seen:
                return f"{address} appears twice in the list"
            seen.append(address)
        return None

    def __str__(self) -> str:
        return "address:count, ..."


def _is_address(text: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class OneOf:
    """A string, or a list of strings, out of a few; `not_yet` are Kafka's values that are not supported so far."""

    choices: tuple[str, ...]
    not_yet: tuple[str, ...] = ()

    def problem(self, value: Value) -> str | None:
        """Return why the string, or the first invalid item of the list, is refused."""
        items = value if isinstance(value, tuple) else (value,)
        allowed = ", ".join(self.choices)
        if not items:
            return f"The list must not be empty; allowed items: {allowed}"
        for item in items:
            if item in self.not_yet:
                return f"{item} is not supported by tailrace yet; the value must be one of: {allowed}"
            if item not in self.choices:
                return f"String must be one of: {allowed}"
        return None

    def __str__(self) -> str:
        return f"[{', '.join(self.choices)}]"


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """A location that can hold an archive, or an empty string."""

    schemes: tuple[str, ...] = ("file", "s3", "webhdfs", "hdfs")

    def problem(self, value: Value) -> str | None:
        """Return why the location cannot hold an archive."""
        if not value:
            return None
        try:
            scheme = parse_uri(str(value)).scheme
        except ArchiveError as error:
            return str(error)
        if scheme not in self.schemes:
            return f"An archive cannot be at {scheme}:, only in a directory or at {', '.join(self.schemes)}"
        return None

    def __str__(self) -> str:
        return f"a directory, or {', '.join(f'{scheme}:' for scheme in self.schemes)}"


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """A non-empty string, or a non-empty list without repeated items."""

    def problem(self, value: Value) -> str | None:
        """Return why an empty string or list, or an empty or repeated item, is refused."""
        if isinstance(value, tuple):
            if not value or not all(value):
                return "The list must not be empty or contain an empty item"
            repeated = [item for position, item in enumerate(value) if item in value[:position]]
            return f"{repeated[0]} appears twice in the list" if repeated else None
        return "String must be non-empty" if value == "" else None

    def __str__(self) -> str:
        return "non-empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One configuration key: its meaning, its allowed values and its default."""

    name: str
    type: ConfigType
    default: Value
    documentation: str
    importance: Importance
    valid: Valid | None = None
    update_mode: UpdateMode = "read-only"
    is_sensitive: bool = False
    #: Other names of the same setting in Kafka; if both are given, the main name wins.
    aliases: tuple[str, ...] = ()

    def parse(self, given: object) -> Value:
        """Convert text, or a typed value from TOML, into this key's value, or raise ConfigError."""
        text = as_text(given)
        if text is None:
            raise self.refusal(given, f"Expected a value of type {self.type.name}")
        value = self._convert(text.strip())
        problem = self.valid.problem(value) if self.valid is not None else None
        if problem is not None:
            raise self.refusal(text, problem)
        return value

    def refusal(self, given: object, problem: str) -> ConfigError:
        """Return the error that refuses a value of this key, in Kafka's words."""
        shown = "[hidden]" if self.is_sensitive else given
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {problem}")

    def _convert(self, text: str) -> Value:
        if self.type is ConfigType.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise self.refusal(text, "Expected value to be either true or false")
            return lowered == "true"
        if self.type in _WIDTH_BITS:
            bound = 1 << (_WIDTH_BITS[self.type] - 1)
            number = _parse_decimal(text)
            if number is None or not -bound <= number < bound:
                raise self.refusal(text, f"Not a number of type {self.type.name}")
            return number
        if self.type is ConfigType.DOUBLE:
            try:
                fraction = float(text)
            except ValueError:
                fraction = math.nan
            if math.isnan(fraction):
                raise self.refusal(text, "Not a number of type DOUBLE")
            return fraction
        if self.type is ConfigType.LIST:
            return tuple(item.strip() for item in text.split(",")) if text else ()
        return text


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that gives a topic key its default, and the factor that converts it to the topic's unit."""

    name: str
    factor: int = 1

    def convert(self, value: Value) -> Value:
        """Convert the broker's value to the topic's unit; -1 means "no limit" in every unit."""
        if self.factor == 1 or not isinstance(value, int):
            return value
        return -1 if value < 0 else value * self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKey(ConfigKey):
    """A key that a topic may override; the first synonym with a value gives its default."""

    synonyms: tuple[Synonym, ...]


def as_text(given: object) -> str | None:
    """Convert a TOML value to the form of a properties file, or None if that is impossible."""
    if isinstance(given, str):
        return given
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, float):
        return repr(given).replace("e+", "E").replace("e", "E")  # as Java writes it
    if isinstance(given, int):
        return repr(given)
    if isinstance(given, list | tuple):
        items = [as_text(item) for item in given if not isinstance(item, list | tuple)]
        if len(items) == len(given):
            written = [item for item in items if item is not None]
            return ",".join(written) if len(written) == len(items) else None
    return None


def value_text(value: Value) -> str | None:
    """Convert a value to the form that Kafka's tools show."""
    return None if value is None else as_text(value)


def _parse_decimal(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    # The longest LONG has 19 digits: refuse longer text before converting it costs time.
    if not digits.isascii() or not digits.isdigit() or len(digits) > 40:
        return None
    return int(text)
