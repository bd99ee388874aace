"""Writes docs/protocol.md out of the table of handlers.

Keeps one invariant: what the page says is served is what ApiVersions advertises. Nothing that serves requests
imports it. Run it with `python -m tailrace.broker.protocol_docs [file]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.broker.handlers import APIS, Api
from tailrace.errors import ErrorCode
from tailrace.wire.apis import ApiKey
from tailrace.wire.primitives import MOST_ELEMENTS

_INTRODUCTION = """\
<!-- Written by `python -m tailrace.broker.protocol_docs`; change src/tailrace/broker/handlers, not this page. -->
# Protocol

tailrace speaks the Kafka wire protocol and no other. A client learns from ApiVersions which APIs and versions
there are; this is the same table. *Flexible* is the first version with compact lengths and tagged fields: both
encodings are served, because some clients stop below it and others start above it. *Needs* are Kafka's operations and
types of resources; nothing is checked yet, because there is no authorizer: everybody may do everything.

| API | key | versions | flexible from | what it does here | needs |
|---|---|---|---|---|---|
"""

_NOTES = """
## Where clients and the letter differ

- **Produce is advertised from version 0** and answered from {produce}: a broker without version 0 makes older
  librdkafka believe that it has no compression, and send everything uncompressed.
- **ApiVersions above version {api_versions}** is answered in version 0 with UNSUPPORTED_VERSION and the table, as
  KIP-511 asks. Any other API or version that is not in the table closes the connection.
- **Trailing bytes** of a request body are ignored, and so are unknown tagged fields.
- **Every length** in a request is checked against the bytes that remain before anything is allocated. A request
  larger than `socket.request.max.bytes`, or one without records larger than {control_mib} MiB, closes the connection;
  so does one whose arrays have more than {most_elements:,} elements together: all others would wait for its answer.
- **acks=0** has no response. If such a request fails, the connection is closed, so that the producer looks for news.
- **Auto-creation** (`auto.create.topics.enable`, and the client's own wish from Metadata version 4 on) has happened
  by the time Metadata is answered: the first answer names the leader.
- **FindCoordinator** is advertised although there is no coordinator yet, and says so: librdkafka takes a broker
  without it for one that cannot read lz4, and sends batches uncompressed.
- **Transactions, consumer groups and security** are not served yet; their other APIs are not advertised.

## Order on one connection

Requests of one connection are answered in the order in which they were sent. Produce requests take effect in that
order too; a Fetch that waits for data holds back the answers behind it, not their execution.

## Error codes

The codes that this broker can answer with:

| code | name |
|---|---|
"""


def render() -> str:
    """The whole page."""
    rows = [_row(ApiKey(key), api) for key, api in sorted(APIS.items())]
    notes = _NOTES.format(
        produce=APIS[ApiKey.PRODUCE].first_decodable,
        api_versions=APIS[ApiKey.API_VERSIONS].max_version,
        most_elements=MOST_ELEMENTS,
        control_mib=APIS[ApiKey.METADATA].max_bytes >> 20,
    )
    errors = [f"| {error.value} | {error.name} |" for error in ErrorCode if error is not ErrorCode.NONE]
    return _INTRODUCTION + "\n".join(rows) + "\n" + notes + "\n".join(errors) + "\n"


def _row(key: ApiKey, api: Api) -> str:
    name = api.request.__name__.removesuffix("Request")
    flexible = str(api.request.FLEXIBLE_FROM) if api.max_version >= api.request.FLEXIBLE_FROM else "–"
    needs = ", ".join(str(need) for need in api.needs) or "–"
    return f"| {name} | {key.value} | {api.min_version} to {api.max_version} | {flexible} | {api.summary} | {needs} |"


def main(arguments: list[str]) -> None:
    """Write the page to the given file, or to docs/protocol.md."""
    target = Path(arguments[0] if arguments else "docs/protocol.md")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
