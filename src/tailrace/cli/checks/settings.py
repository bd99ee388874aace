"""Checks the configuration: reports every mistake in it, not only the first, and every key without effect.

`broker.config` parses and validates. If it refuses a key, this module leaves the key out and validates the rest again,
so that the other checks can continue with what is valid.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.broker.config.broker_config import BrokerConfig, gather_settings
from tailrace.cli.checks.finding import Finding, ok, problem, warning
from tailrace.cli.output import count_of, in_plain_words
from tailrace.errors import ConfigError

SUBJECT = "configuration"


def check_settings(path: str | None, overrides: Mapping[str, str]) -> tuple[BrokerConfig, list[Finding]]:
    """Return the configuration without what is wrong in it, and the findings."""
    findings: list[Finding] = []
    try:
        settings, origins = gather_settings(path, overrides)
    except ConfigError as refusal:
        findings.append(problem(SUBJECT, in_plain_words(str(refusal)), "correct the file; the checks below ignore it"))
        settings, origins = gather_settings(None, overrides)
    given = len(settings)
    config: BrokerConfig | None = None
    while config is None:
        try:
            config = BrokerConfig(settings, origins=origins)
        except ConfigError as refusal:
            findings.append(problem(SUBJECT, in_plain_words(str(refusal)), "correct it: the broker would not start"))
            del settings[_culprit(settings, origins, str(refusal))]
    findings += [warning(SUBJECT, text, "remove it, unless you share the file with Kafka") for text in config.warnings]
    if config.get_optional_str("tailrace.coordination") is None:
        findings += _replication(config)
    if not findings:
        text = f"{count_of(given, 'key')} set, all valid" if given else "nothing set, all defaults"
        findings.append(ok(SUBJECT, text))
    return config, findings


def _culprit(settings: Mapping[str, object], origins: Mapping[str, str], refusal: str) -> str:
    """Find the key whose removal changes the refusal; try the keys that the refusal names first."""
    for name in sorted(settings, key=lambda name: name not in refusal):
        rest = {other: value for other, value in settings.items() if other != name}
        try:
            BrokerConfig(rest, origins=origins)
        except ConfigError as other_refusal:
            if str(other_refusal) == refusal:
                continue
        return name
    raise AssertionError(f"removing no single key changes this refusal: {refusal}")


def _replication(config: BrokerConfig) -> list[Finding]:
    """Warn about settings that need more than one broker."""
    return [
        warning(
            SUBJECT,
            f"{name}={config.get_int(name)}, but there is only one broker: {effect}",
            f"set {name}=1, or remove it",
        )
        for name, effect in (
            ("default.replication.factor", "topics without a replication factor of their own cannot be created"),
            ("min.insync.replicas", "the broker refuses producers with acks=all"),
        )
        if config.get_int(name) > 1
    ]
