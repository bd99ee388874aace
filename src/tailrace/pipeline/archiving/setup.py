"""The requirements for archiving a topic: its configuration, and the location of the archive.

Owns the only change that archiving makes to a topic: if it is not archived yet and a location is given, it is from then
on. Everything is checked before anything changes, and existing archives are never moved.
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
    """Open the archives of topics for writing; enable archiving for topics that are not archived yet.

    Contradictory requests are always refused, before anything changes. Topics that cannot be archived now, because they
    or their locations are missing, are passed to `on_failure`, if at least one other can be.
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
    # A location that already has an archive is never created again: it may just not be mounted.
    if not status.version:
        location.create()
    location.check()
    if not status.is_enabled:
        status = _enabled(bootstrap, status.topic, place)
        say(f"{status.topic} is now archived: set {_ENABLE}=true and {_URI}={place}")
    _require_readers(bootstrap, status)
    return TopicArchiver(bootstrap, status, location, warn)


def _require_readers(bootstrap: str, status: ArchiveStatus) -> None:
    """Refuse archiving if a broker cannot read the archive: brokers delete records once they are archived."""
    unable = [each for each in readers(bootstrap, status.topic) if each.failure is not None]
    if unable:
        reasons = "; ".join(f"broker {each.broker_id}: {each.failure}" for each in unable)
        raise ClientError(f"{status.topic} is not archived: some of its brokers cannot read {status.uri} ({reasons})")


def _enabled(bootstrap: str, topic: str, place: str) -> ArchiveStatus:
    """Enable archiving of a topic; other brokers may learn of it a moment later."""
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
        raise UnknownTopicError(f"topic '{topic}' does not exist; list all topics with: tailrace topic list") from None


def _check(bootstrap: str, status: ArchiveStatus, uri: str | None) -> None:
    topic = status.topic
    if uri is not None:
        wanted = _place(uri)
        if (status.is_enabled or status.version) and wanted != _place(status.uri):
            raise ConfigError(
                f"{topic} has {_URI}={status.uri}, so it cannot be archived to {uri}: omit --to, or give the "
                "configured location"
            )
    if status.is_enabled:
        return
    policy = next((each.value for each in Configs(bootstrap).get(ConfigOwner.topic(topic)) if each.name == _POLICY), "")
    if "compact" in (policy or ""):
        raise ClientError(
            f"topic '{topic}' is compacted ({_POLICY}={policy}) and cannot be archived: an archive would keep "
            "what compaction removes"
        )
    if uri is None:
        where = "" if status.uri else f" {_URI}=URI"
        raise ConfigError(
            f"{topic} is not archived: give the archive's location with --to URI, or configure it with: tailrace "
            f"config set topic {topic} {_ENABLE}=true{where}"
        )


def _place(uri: str) -> tuple[object, ...]:
    """Return what equal locations have in common, however they are written."""
    parsed: ArchiveUri = parse_uri(uri)
    options = tuple(sorted(parsed.options.items()))
    return parsed.scheme, parsed.host, parsed.port, parsed.user, parsed.path.rstrip("/"), options
