"""Writes docs/metrics.md from the table of metrics.

Invariant: `/metrics` has every metric on the page. Nothing that serves requests imports this module. Run it with
`python -m tailrace.broker.monitoring.docs [file]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.broker.config.broker_config import BROKER_KEYS
from tailrace.broker.monitoring.counters import REQUEST_TIME_BOUNDS_MS
from tailrace.broker.monitoring.http import IDLE_SECONDS, MAX_CONNECTIONS, MAX_HEAD_BYTES, PATIENCE_SECONDS
from tailrace.broker.monitoring.metric import Metric
from tailrace.broker.monitoring.metrics import METRICS

_INTRODUCTION = """\
<!-- Written by `python -m tailrace.broker.monitoring.docs`; change src/tailrace/broker/monitoring, not this page. -->
# Metrics and health

A broker reports metrics and its health over HTTP, on a separate port that is off by default:

```sh
tailrace serve --set metrics.port=9404
curl http://127.0.0.1:9404/metrics
```

| path | response |
|---|---|
| `/metrics` | every metric below, in Prometheus's text format (version 0.0.4) |
| `/healthz` | 200 while the process is alive and its event loop runs, even before the logs are open |
| `/readyz` | 200 while the broker serves requests: its logs are open, at least one log directory is online, and it is \
not stopping. Otherwise 503. The body is JSON with a `reason` |

The port listens on `metrics.host`, {host} by default, which only the machine itself can reach. To scrape it from \
other machines, set an address of this machine, or 0.0.0.0 for all its addresses. There is no password and no TLS: \
anybody who reaches the port can read the names of topics and groups, and figures, but nothing else.

The port serves only GET and HEAD, and keeps connections open. A request may have at most {head_bytes} bytes, and \
there may be {connections} connections. A client has {patience:.0f} s to send a request that it has begun or to take a \
response, and {idle:.0f} s between two requests.

```yaml
# prometheus.yml
scrape_configs:
  - job_name: tailrace
    static_configs:
      - targets: ["queue.example.org:9404"]
```

## What a scrape costs

Counters are plain numbers, and become text only when they are scraped. The broker writes the text for thousands of \
partitions in slices between requests, which wait at most a fraction of a millisecond for it. Scrapes that arrive \
while one is being written share its text.

## Names

Names are Kafka's, as the usual rules of the Prometheus JMX exporter spell them, so dashboards made for Kafka work. \
Metrics that Kafka does not have begin with `tailrace_`. Where Kafka has a rate (`…PerSec`), there is a counter that \
ends in `_total`: apply `rate()` to it. A metric with a `topic` label also has one sample without it, for all topics; \
exclude that from sums with `{{topic!=""}}`.

Lag has the names that lag exporters for Kafka use (`kafka_consumergroup_lag`), so you need no exporter. Each broker \
reports the groups that it coordinates, and their lag in the partitions that it leads itself. In a cluster, compute \
the lag in all partitions from the offsets:

```promql
max by (topic, partition) (kafka_log_log_logendoffset)
  - on (topic, partition) group_right () kafka_consumergroup_current_offset
```

Request times are histograms, not quantiles, so that you can add them up over brokers. The bounds are {bounds} ms:

```promql
histogram_quantile(0.99, sum by (le) (rate(kafka_network_requestmetrics_totaltimems_bucket{{request="Produce"}}[5m])))
```

## Recommended alerts

| condition | meaning |
|---|---|
| `up == 0`, or `/readyz` not 200 | the broker does not serve |
| `kafka_log_logmanager_offlinelogdirectorycount > 0` | a disk failed; its partitions answer KAFKA_STORAGE_ERROR |
| `kafka_controller_kafkacontroller_offlinepartitionscount > 0` | no broker serves these partitions |
| `kafka_server_replicamanager_underminisrpartitioncount > 0` | producers with acks=all are refused |
| `rate(kafka_server_brokertopicmetrics_failedproducerequests_total{{topic=""}}[5m]) > 0` | batches are refused; \
`kafka_network_requestmetrics_errors_total` says why |
| `histogram_quantile(0.99, rate(tailrace_event_loop_lag_seconds_bucket[5m])) > 0.1` | everything is slow: too \
much work for one core, or a machine that swaps |
| `histogram_quantile(0.99, rate(tailrace_log_sync_duration_seconds_bucket[5m])) > 1` | the disk does not keep up |
| `sum by (consumergroup, topic) (kafka_consumergroup_lag) > 10000`, or growing for long | a group does not keep up, \
or has no members: see `kafka_consumergroup_members` |
| `rate(kafka_server_group_coordinator_metrics_group_rebalance_count_total[10m]) > 0.1` | members come and go: \
processing takes longer than `max.poll.interval.ms`, or members crash |
| `tailrace_archive_lag_ms > 86400000` | the archiver of the topic stopped or does not keep up: brokers keep \
records beyond their retention |
| `tailrace_archive_held_partitions > 0` | the disk is almost full with records that are not archived: producers are \
refused |
| `tailrace_archive_unreadable_topics > 0` | the broker cannot read an archive, so it keeps records that it \
should delete: see `tailrace archive status` |
| `rate(tailrace_archive_read_failures_total[5m]) > 0` | consumers of old records wait: the archive cannot be read |
| `process_open_fds / process_max_fds > 0.8` | raise the limit of file descriptors |

## All metrics

| name | type | labels | meaning |
|---|---|---|---|
"""


def render() -> str:
    """Return the whole page."""
    introduction = _INTRODUCTION.format(
        host=f"`{BROKER_KEYS['metrics.host'].default}`",
        head_bytes=MAX_HEAD_BYTES,
        connections=MAX_CONNECTIONS,
        patience=PATIENCE_SECONDS,
        idle=IDLE_SECONDS,
        bounds=", ".join(f"{bound:g}" for bound in REQUEST_TIME_BOUNDS_MS),
    )
    return introduction + "\n".join(map(_row, METRICS)) + "\n"


def _row(metric: Metric) -> str:
    about = metric.description
    labels = ", ".join(f"`{label}`" for label in about.labels)
    return f"| `{about.name}` | {about.kind.value} | {labels} | {about.meaning} |"


def main(arguments: list[str]) -> None:
    """Write the page to the given file, or to docs/metrics.md."""
    target = Path(arguments[0] if arguments else "docs/metrics.md")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
