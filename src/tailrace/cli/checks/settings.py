"""The configuration: every mistake in it, not only the first, and what in it changes nothing.

Parsing and judging is `broker.config`'s. A key that is refused is left out and the rest judged again, so that the
other checks can go on with what is right.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.broker.config.broker_config import BrokerConfig, gather_settings
from tailrace.cli.checks.finding import Finding, ok, problem, warning
from tailrace.cli.output import count_of
from tailrace.errors import ConfigError

SUBJECT = "configuration"


def check_settings(path: str | None, overrides: Mapping[str, str]) -> tuple[BrokerConfig, list[Finding]]:
    """The configuration without what is wrong in it, and what was found."""
    findings: list[Finding] = []
    try:
        settings, origins = gather_settings(path, overrides)
    except ConfigError as refusal:
        findings.append(problem(SUBJECT, str(refusal), "correct the file; it was left out of the checks below"))
        settings, origins = gather_settings(None, overrides)
    given = len(settings)
    config: BrokerConfig | None = None
    while config is None:
        try:
            config = BrokerConfig(settings, origins=origins)
        except ConfigError as refusal:
            findings.append(problem(SUBJECT, str(refusal), "correct it: a broker does not start with it"))
            del settings[_culprit(settings, origins, str(refusal))]
    findings += [
        warning(SUBJECT, text, "take it out, unless the file is Kafka's and shall stay as it is")
        for text in config.warnings
    ]
    findings += _replication(config)
    if not findings:
        text = f"{count_of(given, 'key')} given, all known and allowed" if given else "nothing given, all defaults"
        findings.append(ok(SUBJECT, text))
    return config, findings


def _culprit(settings: Mapping[str, object], origins: Mapping[str, str], refusal: str) -> str:
    """The key without which the refusal is another one, or none; first among those that it names."""
    for name in sorted(settings, key=lambda name: name not in refusal):
        rest = {other: value for other, value in settings.items() if other != name}
        try:
            BrokerConfig(rest, origins=origins)
        except ConfigError as other_refusal:
            if str(other_refusal) == refusal:
                continue
        return name
    raise AssertionError(f"no key is to blame for: {refusal}")


def _replication(config: BrokerConfig) -> list[Finding]:
    """One broker holds one replica of everything."""
    return [
        warning(
            SUBJECT,
            f"{name}={config.get_int(name)}, and there is one broker: {effect}",
            f"set {name}=1, or leave it out",
        )
        for name, effect in (
            ("default.replication.factor", "topics that name no replication factor cannot be created"),
            ("min.insync.replicas", "producers with acks=all are refused"),
        )
        if config.get_int(name) > 1
    ]
