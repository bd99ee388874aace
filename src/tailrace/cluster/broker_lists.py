"""Lists of brokers as short strings: a value names its brokers once, and each list has one character per broker.

A topic with 10,000 partitions has tens of thousands of such lists, and must fit into one value of the store. A list is
never longer than one with more of the same brokers, so an ISR takes no more space than the replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_letters, digits

#: Characters that JSON does not escape. Letters come first, because digits would look like broker ids.
_FIRST_NAMES = ascii_letters + digits + "!#$%&'()*+,-./:;<=>?@[]^_`{|}~"
#: The code point where the names of further brokers start: the next 1,792 take two bytes each in UTF-8.
_FURTHER_NAMES = 0x100
#: The limit, because surrogates follow, which are not characters of their own.
_MOST_BROKERS = len(_FIRST_NAMES) + 0xD800 - _FURTHER_NAMES


def _names(count: int) -> str:
    if count > _MOST_BROKERS:
        raise ValueError(f"{count} brokers are more than a value has names for")
    further = range(_FURTHER_NAMES, _FURTHER_NAMES + max(0, count - len(_FIRST_NAMES)))
    return _FIRST_NAMES[:count] + "".join(map(chr, further))


def packed(lists: Iterable[tuple[int, ...]]) -> tuple[Sequence[int], Mapping[tuple[int, ...], str]]:
    """The brokers in lists, in the order of their names, and the string of each list."""
    distinct = dict.fromkeys(lists)
    brokers = sorted({broker_id for each in distinct for broker_id in each})
    name_of = dict(zip(brokers, _names(len(brokers)), strict=True)).__getitem__
    return brokers, {each: "".join(map(name_of, each)) for each in distinct}


def unpacked(brokers: Sequence[int], texts: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
    """Lists of brokers by their strings; equal lists are one object. KeyError if a string names no broker."""
    broker_of = dict(zip(_names(len(brokers)), brokers, strict=True)).__getitem__
    return {text: tuple(map(broker_of, text)) for text in dict.fromkeys(texts)}
