"""The message schemas inside Kafka's own jars, and the comparison of our descriptions with them, field by field.

The jars are found through TAILRACE_KAFKA_LIB, a folder with Kafka's libraries, or in .cache/kafka/lib.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tailrace.wire.codec import FOREVER, NEVER, Field, Kind, Message, Struct

LIBRARY = Path(os.environ.get("TAILRACE_KAFKA_LIB") or Path(__file__).parents[3] / ".cache/kafka/lib")
CLIENTS = "kafka-clients-[0-9]*.jar"
GROUP_COORDINATOR = "kafka-group-coordinator-[0-9]*.jar"
TRANSACTION_COORDINATOR = "kafka-transaction-coordinator-[0-9]*.jar"


def needs(jar: str) -> pytest.MarkDecorator:
    """Skips what compares with a jar that is not there."""
    return pytest.mark.skipif(
        not list(LIBRARY.glob(jar)), reason=f"no {jar} in {LIBRARY.name}: set TAILRACE_KAFKA_LIB to Kafka's libs folder"
    )


@cache
def schemas(jar: str) -> dict[str, Any]:
    """Every schema in a jar, by name."""
    found = {}
    with zipfile.ZipFile(sorted(LIBRARY.glob(jar))[-1]) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"common/message/\w+\.json", name):
                text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                found[Path(name).stem] = json.loads(text)
    return found


def span(text: str | None) -> tuple[int, int] | None:
    """The first and last version of a range such as `3`, `0-5` or `7+`."""
    if text is None or text == "none":
        return None
    first, _, last = text.removesuffix("+").partition("-")
    return int(first), FOREVER if text.endswith("+") else int(last or first)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def compare_message(message: type[Message], theirs: dict[str, Any], renamed: Mapping[str, str] | None = None) -> None:
    """The versions are the same, and every field of each; `renamed` gives our names for structs that have others."""
    assert span(theirs["validVersions"]) == (message.MIN_VERSION, message.MAX_VERSION)
    assert span(theirs["flexibleVersions"]) in (None, (message.FLEXIBLE_FROM, FOREVER))
    assert (message.FLEXIBLE_FROM == NEVER) == (theirs["flexibleVersions"] == "none")
    common = {entry["name"]: entry["fields"] for entry in theirs.get("commonStructs", [])}
    versions = range(message.MIN_VERSION, message.MAX_VERSION + 1)
    _Comparison(common, renamed or {}).compare(message, theirs["fields"], versions)


class _Comparison:
    """One schema, with the structs that several of its fields share."""

    def __init__(self, common: dict[str, list[dict[str, Any]]], renamed: Mapping[str, str]) -> None:
        self._common = common
        self._renamed = renamed

    def compare(self, struct: type[Struct], fields: list[dict[str, Any]], versions: range) -> None:
        """Every field, in order, exists in the same versions with the same type, nullability, tag and default."""
        assert list(struct.FIELDS) == [snake_case(field["name"]) for field in fields], struct.__name__
        for ours, theirs in zip(struct.FIELDS.values(), fields, strict=True):
            where = f"{struct.__name__}.{theirs['name']}"
            # A field that is only ever tagged has no other versions.
            first, last = span(theirs.get("versions", theirs.get("taggedVersions"))) or (1, 0)
            nullable = span(theirs.get("nullableVersions"))
            tagged = span(theirs.get("taggedVersions"))
            present = [version for version in versions if first <= version <= last]
            assert [version for version in versions if ours.in_version(version)] == present, where
            for version in present:
                allows_null = nullable is not None and nullable[0] <= version <= nullable[1]
                assert ours.is_nullable(version) == allows_null, f"{where} v{version}"
                assert (ours.tag is not None) == (tagged is not None and tagged[0] <= version <= tagged[1]), where
            is_array, kind = theirs["type"].startswith("[]"), theirs["type"].removeprefix("[]")
            assert _kind_of(ours) == is_array * "[]" + self._renamed.get(kind, kind), where
            assert ours.tag == theirs.get("tag"), where
            default = _default_of(theirs)
            if default is not ...:
                assert ours.default == default, where
            elif ours.kind is Kind.ARRAY:
                assert ours.default is list, where
            if ours.struct is not None:
                inner = theirs["fields"] if "fields" in theirs else self._common[kind]
                self.compare(ours.struct, inner, range(max(versions[0], first), min(versions[-1], last) + 1))


def _default_of(field: dict[str, Any]) -> Any:
    """The default as the schema writes it, or that of the field's type."""
    kind, text = field["type"], field.get("default")
    if text is None:
        simple: dict[str, Any] = {"string": "", "bool": False, "records": None}
        return None if "default" in field else simple.get(kind, 0 if kind.startswith("int") else ...)
    if text == "null":
        return None
    if kind == "bool":
        return str(text) == "true"
    return int(str(text), 0) if kind.startswith("int") else text


def _kind_of(field: Field) -> str:
    """The type of our field, spelled as a schema does."""
    if field.kind is Kind.STRUCT:
        assert field.struct is not None
        return field.struct.__name__
    if field.kind is Kind.ARRAY:
        return "[]" + (field.struct.__name__ if field.struct else field.element.value if field.element else "")
    return str(field.kind.value)
