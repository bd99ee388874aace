"""`tailrace serve`: turn options into a configuration and run a broker with it.

Owns the mapping from options to configuration keys. `broker.config` owns the keys, `cli.run_broker` runs the broker.
"""

from __future__ import annotations

import click

from tailrace.cli.options import MAX_INT32, PairType, WholeNumber, pairs_without_repeats

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092


def overrides_from_options(
    settings: tuple[tuple[str, str], ...],
    data_dir: str | None,
    host: str | None,
    port: int | None,
    log_format: str | None = None,
    log_level: str | None = None,
    node_id: int | None = None,
    coordination: str | None = None,
) -> dict[str, str]:
    """Map the options to configuration keys; raise UsageError if an option and `--set` give the same key."""
    overrides = pairs_without_repeats(settings, "--set")
    if data_dir is not None:
        _set_once(overrides, "log.dirs", data_dir, "--data-dir")
    if node_id is not None:
        _set_once(overrides, "node.id", str(node_id), "--node-id")
    if coordination is not None:
        _set_once(overrides, "tailrace.coordination", coordination, "--coordination")
    if host is not None or port is not None:
        name = host or DEFAULT_HOST
        bracketed = f"[{name}]" if ":" in name and not name.startswith("[") else name
        listener = f"PLAINTEXT://{bracketed}:{DEFAULT_PORT if port is None else port}"
        _set_once(overrides, "listeners", listener, "--port" if host is None else "--host")
    if log_format is not None:
        _set_once(overrides, "tailrace.log.format", log_format, "--log-format")
    if log_level is not None:
        _set_once(overrides, "tailrace.log.level", log_level.upper(), "--log-level")
    return overrides


def _set_once(overrides: dict[str, str], key: str, value: str, option: str) -> None:
    if key in overrides:
        raise click.UsageError(f"{option} and --set {key} set the same key: give only one of them.")
    overrides[key] = value


@click.command()
@click.option(
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Read the configuration from FILE: server.properties syntax, or TOML if the name ends in .toml.",
)
@click.option(
    "--data-dir", type=click.Path(file_okay=False), metavar="DIR", help="Keep records and metadata in DIR (log.dirs)."
)
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    help=f"Listen on this port; 0 picks a free one.  [default: {DEFAULT_PORT}]",
)
@click.option(
    "--host",
    metavar="NAME",
    help=f"Listen on this address; 0.0.0.0 means all addresses.  [default: {DEFAULT_HOST}]",
)
@click.option("--node-id", type=WholeNumber(0, MAX_INT32), help="Id of this broker (node.id).  [default: 1]")
@click.option(
    "--coordination",
    metavar="URL",
    help="Join the cluster of this store: etcd://host:2379/prefix or zookeeper://host:2181/chroot "
    "(tailrace.coordination).  [default: none; run a single broker]",
)
@click.option(
    "--set",
    "settings",
    type=PairType(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a configuration key; overrides the file. May be repeated.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Format of the log on standard error (tailrace.log.format).  [default: text]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    help="Log events of this level and above (tailrace.log.level).  [default: info]",
)
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
) -> int:
    """Run a broker until Ctrl-C.

    \b
    Examples:
      tailrace serve
      tailrace serve --data-dir /var/lib/tailrace --port 9092
      tailrace serve --config server.properties --set log.retention.hours=24
      tailrace serve --log-format json --set metrics.port=9404
      tailrace serve --node-id 2 --coordination etcd://10.0.0.1:2379,10.0.0.2:2379/tailrace --host 10.0.0.2
    """
    from tailrace.broker.config.broker_config import load_config

    overrides = overrides_from_options(settings, data_dir, host, port, log_format, log_level, node_id, coordination)
    config = load_config(config_path, overrides)
    from tailrace.cli.run_broker import run_broker

    return run_broker(config)
