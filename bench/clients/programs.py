"""Runs the C clients: command lines in, one JSON object out, with the server's resource usage meanwhile.

Owns the measurements around a client's run: server CPU before and after, the server's peak memory. Must not know why a
workload runs.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.clients.server import Handle, Server
from bench.harness import processes
from bench.harness.failures import ClientFailedError
from bench.harness.paths import BUILD
from bench.harness.suite import Metrics

SAMPLE_SECONDS = 0.1
CLIENT_TIMEOUT_SECONDS = 180


def parse_result(command: list[str], code: int, output: str, errors: str) -> Metrics:
    """Return the numbers in a client's JSON object, without its words and flags."""
    if code != 0:
        raise ClientFailedError(f"{' '.join(command)}: exit code {code}: {errors.strip()[-500:]}")
    try:
        found = json.loads(output)
    except json.JSONDecodeError as error:
        raise ClientFailedError(f"{' '.join(command)}: not JSON: {output[:200]!r}") from error
    return {key: float(value) for key, value in found.items() if type(value) in (int, float)}


def run_client(command: list[str]) -> Metrics:
    """Run a client to its end."""
    with beside(command) as process:
        return result_of(process, command)


@contextmanager
def beside(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a client beside the block, and end it with the block if it is still running."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def result_of(process: subprocess.Popen[str], command: list[str]) -> Metrics:
    """Return the numbers of a client that ran beside something, after its end."""
    try:
        output, errors = process.communicate(timeout=CLIENT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ClientFailedError(f"{' '.join(command)}: did not end within {CLIENT_TIMEOUT_SECONDS} s") from error
    return parse_result(command, process.returncode, output, errors)


@contextmanager
def server_usage(server: Server) -> Iterator[Metrics]:
    """Measure the server while the block runs: `server_cpu_s` and the peak `rss_mb`, available when it ends."""
    usage: Metrics = {}
    done = threading.Event()
    pids = server.pids()
    highest = [processes.rss_mb(pids)]

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            highest[0] = max(highest[0], processes.rss_mb(pids))

    watcher = threading.Thread(target=watch, daemon=True)
    before = server.cpu_seconds()
    watcher.start()
    try:
        yield usage
        usage["server_cpu_s"] = server.cpu_seconds() - before
        usage["rss_mb"] = max(highest[0], server.rss_mb())
    finally:
        done.set()
        watcher.join()


def with_costs(result: Metrics, usage: Metrics) -> Metrics:
    """Return a client's result with the server's usage and its cost per GB, million messages and request."""
    metrics = {**result, **usage}
    cpu = usage["server_cpu_s"]
    if result.get("bytes"):
        metrics["cpu_s_per_gb"] = cpu / (result["bytes"] / 1e9)
    if result.get("messages"):
        metrics["cpu_s_per_million"] = cpu / (result["messages"] / 1e6)
    if result.get("requests"):
        metrics["cpu_us_per_request"] = cpu / result["requests"] * 1e6
    return metrics


def measured(server: Server, command: list[str]) -> Metrics:
    """Run a client and add the server's usage during its run."""
    with server_usage(server) as usage:
        result = run_client(command)
    return with_costs(result, usage)


def measured_from_ready(server: Server, command: list[str]) -> Metrics:
    """Run a client that pauses before its first and after its last request, and add the server's usage in between."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = threading.Timer(CLIENT_TIMEOUT_SECONDS, process.kill)
    limit.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            output, errors = process.communicate()
            reason = f"{' '.join(command)}: not ready, exit code {process.returncode}: {errors.strip()[-500:]}"
            raise ClientFailedError(reason)
        with server_usage(server) as usage:
            process.stdin.write("begin\n")
            process.stdin.flush()
            output = process.stdout.readline()
        _, errors = process.communicate()
    finally:
        limit.cancel()
        if process.poll() is None:
            process.kill()
            process.communicate()
    return with_costs(parse_result(command, process.returncode, output, errors), usage)


def rdbench(kind: str, handle: Handle, topic: str, **options: object) -> list[str]:
    """Return a command of the librdkafka client."""
    return [str(BUILD / "rdbench"), kind, "--bootstrap", handle.address, "--topic", topic, *_flags(options)]


def rawbench(kind: str, handle: Handle, topic: str, **options: object) -> list[str]:
    """Return a command of the client that replays prepared requests."""
    target = ["--host", handle.host, "--port", str(handle.port), "--topic", topic]
    return [str(BUILD / "rawbench"), kind, *target, *_flags(options)]


def _flags(options: dict[str, object]) -> list[str]:
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not False:
            flags += [flag, str(value)]
    return flags
