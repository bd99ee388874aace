"""The settings with which commands start Spark."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.pipeline.spark import session
from tailrace.pipeline.spark.session import SparkStartError, check_installation, log_level, session_settings

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def test_what_the_user_says_wins_over_the_defaults() -> None:
    settings = session_settings("app", "local[2]", {"spark.ui.enabled": "true", "spark.executor.cores": "3"}, "off")
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.executor.cores"] == "3"
    assert settings["spark.sql.python.filterPushdown.enabled"] == "true"
    assert (settings["spark.app.name"], settings["spark.master"]) == ("app", "local[2]")


def test_logging_is_configured_by_a_file_of_the_package() -> None:
    settings = session_settings("app", "local", {}, "warn")
    options = settings[JAVA_OPTIONS]
    assert settings["spark.log.level"] == "WARN"
    file = options.split("-Dlog4j2.configurationFile=")[1].split('"')[0]
    assert "${sys:tailrace.spark.log:-off}" in Path(file).read_text()
    assert "-Dtailrace.spark.log=warn" in options


def test_java_options_of_the_user_come_behind_ours() -> None:
    assert session_settings("app", "local", {JAVA_OPTIONS: "-Da=b"}, "off")[JAVA_OPTIONS].endswith(" -Da=b")


def test_the_log_level_is_as_asked_else_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_SPARK_LOG", raising=False)
    assert log_level() == "off"
    monkeypatch.setenv("TAILRACE_SPARK_LOG", "WARN")
    assert log_level() == "warn"
    assert log_level("info") == "info"


def test_an_unknown_log_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_SPARK_LOG", "loud")
    with pytest.raises(
        ConfigError, match="TAILRACE_SPARK_LOG is 'loud'; expected one of off, error, warn, info, debug"
    ):
        log_level()


def test_a_missing_package_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "pyspark" else importlib.util.find_spec(name)

    monkeypatch.setattr(session, "find_spec", find_spec)
    with pytest.raises(SparkStartError, match=r"pyspark is not installed; .* pip install 'tailrace\[spark\]'"):
        check_installation()


def test_tables_without_a_place_are_not_kept_where_a_command_is_run() -> None:
    warehouse = Path(session_settings("app", "local", {}, "off")["spark.sql.warehouse.dir"])
    assert warehouse.is_absolute()
    assert Path.cwd() not in warehouse.parents
