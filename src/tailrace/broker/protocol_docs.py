"""Writes docs/protocol.md from the table of handlers.

Invariant: the page shows as served exactly what ApiVersions advertises. Nothing that serves requests imports this
module. Run it with `python -m tailrace.broker.protocol_docs [file]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.broker.handlers import APIS, Api
from tailrace.errors import ErrorCode
from tailrace.wire.apis import FIRST_OWN_KEY, ApiKey
from tailrace.wire.primitives import MOST_ELEMENTS

_INTRODUCTION = """\
<!-- Written by `python -m tailrace.broker.protocol_docs`; change src/tailrace/broker/handlers, not this page. -->
# Protocol

tailrace speaks the Kafka wire protocol and no other. This table lists the APIs and versions that a client learns from
ApiVersions, and tailrace's own APIs (key {first_own} and up), which are not advertised. *Flexible from* is the first
version with compact lengths and tagged fields; tailrace serves both encodings, because some clients stop below it and
others start above it. *Needs* names Kafka's operations and resource types. Nothing is checked yet, because there is no
authorizer: every client may do everything.

| API | key | versions | flexible from | what it does | needs |
|---|---|---|---|---|---|
"""

_NOTES = """
## What clients rely on

- **Produce is advertised from version 0** and answered from {produce}: a broker without version 0 makes older
  librdkafka believe that it has no compression, and send everything uncompressed.
- **ApiVersions above version {api_versions}** is answered in version 0 with UNSUPPORTED_VERSION and the table, as
  KIP-511 requires. Any other API or version that is not in the table closes the connection.
- **Trailing bytes** of a request body are ignored, and so are unknown tagged fields.
- **Every length** in a request is checked against the bytes that remain before anything is allocated. A request
  larger than `socket.request.max.bytes` closes the connection. So does a request without records that is larger than
  {control_mib} MiB, and one whose arrays have more than {most_elements:,} elements together, because all other
  clients would wait for its response.
- **acks=0** has no response. If such a request fails, the broker closes the connection, so that the producer asks for
  metadata again.
- **Auto-creation** (`auto.create.topics.enable`, and the client's own choice from Metadata version 4 on) is complete
  when Metadata is answered: the first response names the leader.
- **FindCoordinator** finds the coordinators of groups and of transactions. It answers INVALID_REQUEST for share groups.
- **Not served yet**: share groups, Kafka Streams' own group protocol, ACLs, SASL, quotas, and moving replicas. Their
  APIs are not advertised.

## Order on one connection

A connection gets its responses in the order of its requests. Produce requests also take effect in that order. A Fetch
that waits for data delays the responses behind it, but not what those requests do.

## Error codes

The error codes in this broker's responses:

| code | name |
|---|---|
"""


def render() -> str:
    """Return the whole page."""
    rows = [_row(ApiKey(key), api) for key, api in sorted(APIS.items())]
    notes = _NOTES.format(
        produce=APIS[ApiKey.PRODUCE].first_decodable,
        api_versions=APIS[ApiKey.API_VERSIONS].max_version,
        most_elements=MOST_ELEMENTS,
        control_mib=APIS[ApiKey.METADATA].max_bytes >> 20,
    )
    errors = [f"| {error.value} | {error.name} |" for error in ErrorCode if error is not ErrorCode.NONE]
    return _INTRODUCTION.format(first_own=FIRST_OWN_KEY) + "\n".join(rows) + "\n" + notes + "\n".join(errors) + "\n"


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
