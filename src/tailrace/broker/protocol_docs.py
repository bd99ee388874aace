"""Writes docs/protocol.md from the table of handlers.

Invariant: the page shows as served exactly what ApiVersions advertises. Nothing that serves requests imports this
module. Run it with `python -m tailrace.broker.protocol_docs [file]`.
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

tailrace only speaks the Kafka wire protocol. This is the table of APIs and versions that clients receive from
ApiVersions. *Flexible* is the first version with compact lengths and tagged fields: tailrace serves both encodings,
because some clients only use versions below it and others only versions above it. *Needs* are Kafka's operations and
resource types; they are not enforced yet, because there is no authorizer: every client may do everything.

| API | key | versions | flexible from | what it does | needs |
|---|---|---|---|---|---|
"""

_NOTES = """
## Notes on compatibility

- **Produce** is advertised from version 0 and served from version {produce}: older librdkafka assumes that a broker
  without version 0 has no compression, and sends everything uncompressed.
- **ApiVersions above version {api_versions}** gets a version 0 response with UNSUPPORTED_VERSION and the table, as
  KIP-511 demands. Any other API or version that is not in the table closes the connection.
- **Trailing bytes** of a request body are ignored, and so are unknown tagged fields.
- **Every length** in a request is checked against the bytes that remain before anything is allocated. A request
  larger than `socket.request.max.bytes`, or one without records larger than {control_mib} MiB, closes the connection;
  so does one whose arrays have more than {most_elements:,} elements together: other clients would wait too long.
- **acks=0** has no response. If such a request fails, the connection is closed, so that the producer refreshes its
  metadata.
- **Auto-creation** (`auto.create.topics.enable`, and the client's consent from Metadata version 4 on) is finished
  when Metadata is answered: the first response names the leader.
- **FindCoordinator** returns COORDINATOR_NOT_AVAILABLE for transactional ids.
- **Transactions and security** are not supported yet; their other APIs are not advertised.

## Order on one connection

The broker answers the requests of one connection in the order in which they were sent. Produce requests take effect
in that order too. A Fetch that waits for data delays the responses behind it, not the execution of their requests.

## Error codes

The error codes that this broker can return:

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
