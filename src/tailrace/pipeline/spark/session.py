"""The only place that starts Spark for a command: with this Python, on a suitable Java, and quietly.

Output of Spark's processes while they start is hidden, unless the start fails or `TAILRACE_SPARK_LOG` (off, error,
warn, info, debug) asks for it. This module must not know topics: Spark finds the data source by itself, through the
package `pyspark_tailrace`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError, TailraceError
from tailrace.pipeline.spark.errors import first_line
from tailrace.pipeline.spark.java import check_java
from tailrace.pipeline.spark.worker_python import command_beside_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_VARIABLE = "TAILRACE_SPARK_LOG"
LOG_LEVELS = ("off", "error", "warn", "info", "debug")
_QUIET = LOG_LEVELS[0]
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PYTHON = "spark.pyspark.python"
_HELD_BYTES = 65536
_END_SECONDS = 20
_INTERRUPTED_END_SECONDS = 5
_NO_MASTER = "no Spark master responds at {}; is it running, and is its address right?"

#: The user's --conf overrides these.
DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The same as for all of tailrace's output.
    "spark.sql.session.timeZone": "UTC",
    # Lets filters on partition, offset and timestamp reach the source; Spark's default is off.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Java stack traces are for debugging Spark.
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    # Spark creates a folder for tables without a location, in whatever directory a command runs.
    "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/tailrace-spark-warehouse-{os.getuid()}",
}


class SparkStartError(TailraceError):
    """Spark could not be started; the output of its processes is in the notes."""


def spark_session(
    app_name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None, log: str | None = None
) -> SparkSession:
    """Start Spark, or return the session that already runs; `conf` overrides all defaults."""
    settings = session_settings(app_name, master, conf or {}, log_level(log))
    check_installation()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    silence_query_logging()
    # Workers must find this very installation, even if another Python comes first on the path.
    python = settings.get(_WORKER_PYTHON) or os.environ.get("PYSPARK_PYTHON") or command_beside_python()
    os.environ["PYSPARK_PYTHON"] = python
    return _start(settings, passing=log_level(log) != _QUIET)


def check_installation() -> None:
    """Raise an error that says what to install, unless PySpark, its requirements and a Java are there."""
    for module in ("pyspark", "py4j", "pandas", "pyarrow", "fastavro"):
        if find_spec(module) is None:
            raise SparkStartError(f"{module} is not installed; install it with: pip install 'tailrace[spark]'")
    check_java()


@contextmanager
def stopping(session: SparkSession) -> Iterator[None]:
    """Stop Spark when the block ends; Ctrl-C aborts all work, and ends the block with KeyboardInterrupt.

    Spark cannot be asked to abort: the connection for that still waits for a response, and PySpark's calls while an
    interrupted one unwinds would hang. So Spark's process is ended first: Spark treats that as the end of the
    application, and all calls fail. Spark's shutdown may hang as well while one of our calls waits for it: then, or on
    a second Ctrl-C, its process is killed.
    """
    gateway: Any = session.sparkContext._gateway
    process = gateway.proc
    interrupted = False
    killing = threading.Timer(_INTERRUPTED_END_SECONDS, process.kill if process is not None else lambda: None)
    killing.daemon = True

    def on_interrupt(*_: object) -> None:
        nonlocal interrupted
        if process is not None and interrupted:
            process.kill()
        elif process is not None:
            process.terminate()
            killing.start()
        interrupted = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        try:
            if interrupted:
                _await_end(process)
                killing.cancel()
            else:
                stop_spark(session)
        finally:
            signal.signal(signal.SIGINT, before)


def stop_spark(session: SparkSession) -> None:
    """Stop Spark and wait until its Java process is gone, so that no command leaves one behind."""
    from py4j.protocol import Py4JError

    gateway: Any = session.sparkContext._gateway
    try:
        session.stop()
        gateway.shutdown()
    except (Py4JError, OSError):
        pass  # It is already gone.
    _await_end(gateway.proc)


def _await_end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def session_settings(app_name: str, master: str, conf: Mapping[str, str], level: str) -> dict[str, str]:
    """Return all Spark settings for a session: the defaults, then the user's."""
    log_file = files("tailrace.pipeline").joinpath("log4j2.properties")
    java_options = f'"-Dlog4j2.configurationFile={log_file}" -Dtailrace.spark.log={level} {conf.get(_JAVA_OPTIONS, "")}'
    # The level once more: Spark's launcher for Python resets any other level to warn.
    named = {"spark.master": master, "spark.app.name": app_name, "spark.log.level": level.upper()}
    return {**DEFAULTS, **named, **conf, _JAVA_OPTIONS: java_options.strip()}


def log_level(asked: str | None = None) -> str:
    """Return how much of Spark's logging to show: the argument, else the environment variable, else nothing."""
    level = (asked or os.environ.get(LOG_VARIABLE) or _QUIET).lower()
    if level not in LOG_LEVELS:
        raise ConfigError(f"{LOG_VARIABLE} is '{level}'; expected one of {', '.join(LOG_LEVELS)}")
    return level


def silence_query_logging() -> None:
    """Stop PySpark from printing each failing query as JSON, and each broken connection, beside the exceptions."""
    from pyspark.logger import PySparkLogger

    # It logs a failed call through the root logger, where no level or handler can tell its records from others.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_from_py4j)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return os.path.basename(os.path.dirname(record.pathname)) != "py4j"


def _start(settings: Mapping[str, str], *, passing: bool) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    output = _ProcessOutput(passing=passing)
    pairs = list(settings.items())
    try:
        conf = SparkConf(loadDefaults=False).setAll(pairs)
        gateway = launch_gateway(conf, output.popen_arguments)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise SparkStartError(f"Spark did not start: {output.reason() or first_line(error)}") from error
    finally:
        output.close_writing_end()
    try:
        context = SparkContext(gateway=gateway, conf=SparkConf(_jvm=gateway.jvm).setAll(pairs))
        session = SparkSession.builder.getOrCreate()
        # A master that does not respond only shows as a context that stopped itself.
        if context._jsc.sc().isStopped():
            raise SparkStartError(_NO_MASTER.format(settings["spark.master"]))
    except TailraceError:
        raise
    except Exception as error:
        if "stopped SparkContext" in str(error):
            raise SparkStartError(_NO_MASTER.format(settings["spark.master"])) from error
        raise SparkStartError(f"Spark did not start: {first_line(error)}") from error
    output.started()
    return session


class _ProcessOutput:
    """The output of Spark's Java process: held back while it starts, then passed to our standard error.

    This includes its standard output, which must not mix with a query's result.
    """

    def __init__(self, *, passing: bool) -> None:
        self._passing = passing
        self._held = b""
        self._reading_end, self._writing_end = os.pipe()
        self._thread = threading.Thread(target=self._pump, name="spark-output", daemon=True)
        self._thread.start()

    @property
    def popen_arguments(self) -> dict[str, Any]:
        return {"stdout": self._writing_end, "stderr": self._writing_end}

    def close_writing_end(self) -> None:
        """Leave the pipe to the process alone, so that it ends with the process."""
        os.close(self._writing_end)

    def started(self) -> None:
        """Hold nothing back from now on."""
        self._passing = True

    def reason(self) -> str:
        """Return the line that best explains why the process ended, or nothing."""
        self._thread.join(timeout=1)
        said = self._held.decode(errors="replace").splitlines()
        lines = [line.strip() for line in said if line.strip() and not line.startswith(("WARNING: ", "\tat "))]
        thrown = [line for line in lines if line.startswith("Exception in thread")]
        line = (thrown or lines or [""])[0]
        return line.removeprefix('Exception in thread "main" ').split("Exception: ", 1)[-1]

    def _pump(self) -> None:
        with open(self._reading_end, "rb", buffering=0) as pipe:
            while data := pipe.read(65536):
                if self._passing:
                    os.write(2, data)
                else:
                    self._held = (self._held + data)[-_HELD_BYTES:]
