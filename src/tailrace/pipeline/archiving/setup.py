"""What has to hold before a topic is archived: its configuration, and the place that the archive is in.

Owns the one change that archiving makes to a topic: where it is not archived yet and a place was named, it is from then
on. Everything is checked before anything is changed, and nothing of an archive that exists is moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tailrace.archive.errors import ArchiveError
from tailrace.archive.location import ArchiveUri, open_location, parse_uri
from tailrace.client.archive import ArchiveStatus, describe, readers
from tailrace.client.configs import ConfigOwner, Configs
from tailrace.client.errors import ClientError, UnknownTopicError
from tailrace.errors import ConfigError, TailraceError
from tailrace.pipeline.archiving.commit import TopicArchiver

_ENABLE = "tailrace.archive.enable"
_URI = "tailrace.archive.uri"
_POLICY = "cleanup.policy"
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.1


def open_archives(
    bootstrap: str,
    topics: Sequence[str],
    uri: str | None,
    say: Callable[[str], None],
    warn: Callable[[str], None] = lambda text: None,
    on_failure: Callable[[str, TailraceError], None] | None = None,
) -> list[TopicArchiver]:
    """The archives of topics, ready to be written to; topics that are not archived yet are from now on.

    What was asked for and makes no sense is always refused, before anything is changed. Topics that cannot be archived
    now, because they or their places are missing, are told to `on_failure`, if one at least can.
    """
    failures: dict[str, TailraceError] = {}
    found = []
    for topic in topics:
        try:
            found.append(_described(bootstrap, topic))
        except UnknownTopicError as error:
            failures[topic] = error
    for status in found:
        _check(bootstrap, status, uri)
    archivers = []
    for status in found:
        try:
            archivers.append(_opened(bootstrap, status, uri, say, warn))
        except (ArchiveError, ClientError) as error:
            failures[status.topic] = error
    if failures and (on_failure is None or not archivers):
        raise next(iter(failures.values()))
    for topic, failure in failures.items():
        assert on_failure is not None
        on_failure(topic, failure)
    return archivers


def _opened(
    bootstrap: str, status: ArchiveStatus, uri: str | None, say: Callable[[str], None], warn: Callable[[str], None]
) -> TopicArchiver:
    place = status.uri if uri is None or status.is_enabled else uri
    location = open_location(place)
    # A place that has an archive already is never made anew: it may just not be mounted.
    if not status.version:
        location.create()
    location.check()
    if not status.is_enabled:
        status = _enabled(bootstrap, status.topic, place)
        say(f"{status.topic} is archived from now on: set {_ENABLE}=true and {_URI}={place}")
    _require_readers(bootstrap, status)
    return TopicArchiver(bootstrap, status, location, warn)


def _require_readers(bootstrap: str, status: ArchiveStatus) -> None:
    """Refuse to archive what brokers could not read for clients; they give up records once those are archived."""
    unable = [each for each in readers(bootstrap, status.topic) if each.failure is not None]
    if unable:
        reasons = "; ".join(f"broker {each.broker_id}: {each.failure}" for each in unable)
        raise ClientError(
            f"{status.topic} is not archived: not every broker that holds it can read {status.uri} ({reasons})"
        )


def _enabled(bootstrap: str, topic: str, place: str) -> ArchiveStatus:
    """Have a topic archived; what another broker says of it may be a moment behind."""
    Configs(bootstrap).change(ConfigOwner.topic(topic), to={_ENABLE: "true", _URI: place})
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        status = describe(bootstrap, topic)
        if (status.is_enabled and status.uri == place) or time.monotonic() > deadline:
            return status
        time.sleep(_PAUSE_SECONDS)


def _described(bootstrap: str, topic: str) -> ArchiveStatus:
    try:
        return describe(bootstrap, topic)
    except UnknownTopicError:
        raise UnknownTopicError(f"topic '{topic}' does not exist; see which do with: tailrace topic list") from None


def _check(bootstrap: str, status: ArchiveStatus, uri: str | None) -> None:
    topic = status.topic
    if uri is not None:
        wanted = _place(uri)
        if (status.is_enabled or status.version) and wanted != _place(status.uri):
            raise ConfigError(
                f"{topic} is archived to {status.uri}, as its {_URI} says, and not to {uri}: leave --to out, or name "
                "that place"
            )
    if status.is_enabled:
        return
    policy = next((each.value for each in Configs(bootstrap).get(ConfigOwner.topic(topic)) if each.name == _POLICY), "")
    if "compact" in (policy or ""):
        raise ClientError(
            f"topic '{topic}' is compacted ({_POLICY}={policy}) and cannot be archived: an archive would keep what "
            "compaction removes"
        )
    if uri is None:
        where = "" if status.uri else f" {_URI}=URI"
        raise ConfigError(
            f"{topic} is not archived: say where its archive shall be with --to URI, or configure it with: "
            f"tailrace config set topic {topic} {_ENABLE}=true{where}"
        )


def _place(uri: str) -> tuple[object, ...]:
    """What two ways to write one place have in common."""
    parsed: ArchiveUri = parse_uri(uri)
    options = tuple(sorted(parsed.options.items()))
    return parsed.scheme, parsed.host, parsed.port, parsed.user, parsed.path.rstrip("/"), options
