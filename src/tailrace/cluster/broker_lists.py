"""Lists of brokers as short texts: a value names its brokers once, and each list has one character for each broker.

A topic of 10,000 partitions has tens of thousands of such lists, and has to fit into one value of the store. No list
takes more room than a longer one of the same brokers, so an ISR takes no more than the replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_letters, digits

#: What JSON writes as it is. Letters first: digits would look like broker ids.
_FIRST_NAMES = ascii_letters + digits + "!#$%&'()*+,-./:;<=>?@[]^_`{|}~"
#: Where the names of further brokers begin: two bytes each in UTF-8 for the next 1,792.
_FURTHER_NAMES = 0x100
#: The last ones are not characters of their own.
_MOST_BROKERS = len(_FIRST_NAMES) + 0xD800 - _FURTHER_NAMES


def _names(count: int) -> str:
    if count > _MOST_BROKERS:
        raise ValueError(f"{count} brokers are more than a value has names for")
    further = range(_FURTHER_NAMES, _FURTHER_NAMES + max(0, count - len(_FIRST_NAMES)))
    return _FIRST_NAMES[:count] + "".join(map(chr, further))


def packed(lists: Iterable[tuple[int, ...]]) -> tuple[Sequence[int], Mapping[tuple[int, ...], str]]:
    """The brokers in lists, in the order of their names, and each list as a text."""
    distinct = dict.fromkeys(lists)
    brokers = sorted({broker_id for each in distinct for broker_id in each})
    name_of = dict(zip(brokers, _names(len(brokers)), strict=True)).__getitem__
    return brokers, {each: "".join(map(name_of, each)) for each in distinct}


def unpacked(brokers: Sequence[int], texts: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
    """Lists of brokers by their texts; equal lists are one object. A KeyError where a text names no broker."""
    broker_of = dict(zip(_names(len(brokers)), brokers, strict=True)).__getitem__
    return {text: tuple(map(broker_of, text)) for text in dict.fromkeys(texts)}
