"""Our descriptions say what the schemas inside Kafka's own client library say, field by field.

The library is found through TAILRACE_KAFKA_LIB, a folder with Kafka's jars, or in .cache/kafka/lib.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import FOREVER, Field, Kind, Message, Struct
from tailrace.wire.messages import REQUESTS, RESPONSES

LIBRARY = Path(os.environ.get("TAILRACE_KAFKA_LIB") or Path(__file__).parents[3] / ".cache/kafka/lib")
JARS = sorted(LIBRARY.glob("kafka-clients-*.jar"))
pytestmark = pytest.mark.skipif(
    not JARS, reason=f"no kafka-clients jar in {LIBRARY.name}: set TAILRACE_KAFKA_LIB to Kafka's libs folder"
)
MESSAGES = [*REQUESTS.values(), *RESPONSES.values()]


@cache
def schemas() -> dict[str, Any]:
    """Every request and response schema in the library, by name."""
    found = {}
    with zipfile.ZipFile(JARS[-1]) as jar:
        for name in jar.namelist():
            if re.fullmatch(r"common/message/\w+(Request|Response)\.json", name):
                text = re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE)
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


def default_of(field: dict[str, Any]) -> Any:
    """The default as the schema writes it, or that of the field's type."""
    kind, text = field["type"], field.get("default")
    if text is None:
        simple: dict[str, Any] = {"string": "", "bool": False, "records": None}
        return simple.get(kind, 0 if kind.startswith("int") else ...)
    if text == "null":
        return None
    if kind == "bool":
        return text == "true"
    return int(str(text), 0) if kind.startswith("int") else text


def kind_of(field: Field) -> str:
    """The type of our field, spelled as a schema does."""
    if field.kind is Kind.STRUCT:
        assert field.struct is not None
        return field.struct.__name__
    if field.kind is Kind.ARRAY:
        return "[]" + (field.struct.__name__ if field.struct else field.element.value if field.element else "")
    return str(field.kind.value)


def compare(struct: type[Struct], fields: list[dict[str, Any]], versions: range) -> None:
    """Every field, in order, exists in the same versions with the same type, nullability, tag and default."""
    assert list(struct.FIELDS) == [snake_case(field["name"]) for field in fields], struct.__name__
    for ours, theirs in zip(struct.FIELDS.values(), fields, strict=True):
        where = f"{struct.__name__}.{theirs['name']}"
        first, last = span(theirs["versions"]) or (1, 0)
        nullable = span(theirs.get("nullableVersions"))
        tagged = span(theirs.get("taggedVersions"))
        present = [version for version in versions if first <= version <= last]
        assert [version for version in versions if ours.in_version(version)] == present, where
        for version in present:
            allows_null = nullable is not None and nullable[0] <= version <= nullable[1]
            assert ours.is_nullable(version) == allows_null, f"{where} v{version}"
            assert (ours.tag is not None) == (tagged is not None and tagged[0] <= version <= tagged[1]), where
        assert kind_of(ours) == theirs["type"], where
        assert ours.tag == theirs.get("tag"), where
        default = default_of(theirs)
        if default is not ...:
            assert ours.default == default, where
        elif ours.kind is Kind.ARRAY:
            assert ours.default is list, where
        if ours.struct is not None:
            compare(ours.struct, theirs["fields"], range(max(versions[0], first), min(versions[-1], last) + 1))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_message_is_described_as_kafka_describes_it(message: type[Message]) -> None:
    theirs = schemas()[message.__name__]
    assert theirs["apiKey"] == message.API_KEY
    assert span(theirs["validVersions"]) == (message.MIN_VERSION, message.MAX_VERSION)
    assert span(theirs["flexibleVersions"]) == (message.FLEXIBLE_FROM, FOREVER)
    compare(message, theirs["fields"], range(message.MIN_VERSION, message.MAX_VERSION + 1))


def test_every_api_has_kafkas_number_and_name() -> None:
    numbers = {
        snake_case(name.removesuffix("Request")).upper(): theirs["apiKey"]
        for name, theirs in schemas().items()
        if name.endswith("Request") and "apiKey" in theirs
    }
    assert numbers == {key.name: int(key) for key in ApiKey}
