"""`tailrace doctor`: check whether a broker would start and serve with the same options.

Prints and counts findings; the checks are in `cli.checks`. Changes nothing, even while a broker uses the directory.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tailrace.cli import serve
from tailrace.cli.checks.examination import Advance, examine
from tailrace.cli.checks.finding import Finding, Status, worst
from tailrace.cli.output import count_of, print_json

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}
_STATUS_WIDTH = len("warning")


# All options of `tailrace serve`: to check its command line, replace `serve` by `doctor`.
@click.command(params=list(serve.command.params))
@click.option("--deep", is_flag=True, help="Also read every batch of every log and check its CRC.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
def command(
    config_path: str | None,
    data_dir: str | None,
    port: int | None,
    host: str | None,
    node_id: int | None,
    coordination: str | None,
    settings: tuple[tuple[str, str], ...],
    log_format: str | None,
    log_level: str | None,
    deep: bool,
    as_json: bool,
) -> int:
    """Check whether a broker would start and serve.

    Takes the options of `tailrace serve`. Checks the configuration, the data directory and the logs in it, the
    metadata store, ports and addresses, limits and the installation. Changes nothing, so you can run it beside the
    broker. Exits with 0 if all is well, with 1 if there are warnings, and with 2 if there are problems: the broker
    would not start, or not serve all its records.

    \b
    Examples:
      tailrace doctor
      tailrace doctor --config server.properties --set log.retention.hours=24
      tailrace doctor --data-dir /var/lib/tailrace --deep
      tailrace doctor --node-id 2 --coordination etcd://10.0.0.1:2379/tailrace --data-dir /var/lib/tailrace
    """
    overrides = serve.overrides_from_options(
        settings, data_dir, host, port, log_format, log_level, node_id, coordination
    )
    # What a store logs while it cannot be reached is in a finding.
    logging.getLogger("tailrace").addHandler(logging.NullHandler())
    findings: list[Finding] = []
    for finding in examine(config_path, overrides, is_deep=deep, progress=_show_progress):
        findings.append(finding)
        if as_json:
            print_json(_to_json(finding))
        else:
            _print(finding)
    if not as_json:
        counts = {status: sum(1 for finding in findings if finding.status is status) for status in Status}
        warnings = count_of(counts[Status.WARNING], "warning")
        click.echo(f"{counts[Status.OK]} ok, {warnings}, {count_of(counts[Status.PROBLEM], 'problem')}")
    return int(worst(findings))


def _print(finding: Finding) -> None:
    status = click.style(finding.status.name.lower().ljust(_STATUS_WIDTH), fg=_COLOURS[finding.status])
    click.echo(f"{status}  {finding.subject}: {finding.text}")
    if finding.advice is not None:
        click.echo(f"{' ' * _STATUS_WIDTH}  to do: {finding.advice}")


def _to_json(finding: Finding) -> dict[str, Any]:
    result = {"status": finding.status.name.lower(), "subject": finding.subject, "text": finding.text}
    return result if finding.advice is None else {**result, "advice": finding.advice}


@contextmanager
def _show_progress(total: int) -> Iterator[Advance]:
    """Show a progress bar if standard error is a terminal."""
    stream = sys.stderr
    if not stream.isatty():
        yield lambda size: None
        return
    with click.progressbar(length=total, label="reading logs", file=stream) as bar:
        yield bar.update
