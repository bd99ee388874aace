"""The options of `tailrace serve` set configuration keys."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tailrace.cli.main import cli
from tailrace.cli.serve import overrides_from_options


def test_no_options_change_nothing() -> None:
    assert overrides_from_options((), None, None, None) == {}


@pytest.mark.parametrize(
    ("host", "port", "listener"),
    [
        (None, 1234, "PLAINTEXT://127.0.0.1:1234"),
        (None, 0, "PLAINTEXT://127.0.0.1:0"),
        ("0.0.0.0", None, "PLAINTEXT://0.0.0.0:9092"),
        ("::1", 1234, "PLAINTEXT://[::1]:1234"),
        ("[::1]", 1234, "PLAINTEXT://[::1]:1234"),
    ],
)
def test_host_and_port_make_the_listener(host: str | None, port: int | None, listener: str) -> None:
    assert overrides_from_options((), None, host, port) == {"listeners": listener}


def test_data_dir_and_set_become_keys() -> None:
    settings = (("log.retention.hours", "3"), ("num.partitions", "4"))
    assert overrides_from_options(settings, "here", None, None) == {
        "log.retention.hours": "3",
        "num.partitions": "4",
        "log.dirs": "here",
    }


@pytest.mark.parametrize(
    ("settings", "data_dir", "port"),
    [
        ((("log.dirs", "a"),), "b", None),
        ((("listeners", "PLAINTEXT://:1"),), None, 2),
        ((("node.id", "1"), ("node.id", "2")), None, None),
    ],
)
def test_one_key_cannot_be_given_twice(
    settings: tuple[tuple[str, str], ...], data_dir: str | None, port: int | None
) -> None:
    with pytest.raises(click.UsageError):
        overrides_from_options(settings, data_dir, None, port)


def test_a_key_that_does_not_exist_ends_with_2_and_names_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["serve", "--set", "log.retention.hour=3"])
    assert result.exit_code == 2
    assert "log.retention.hours" in result.stderr


def test_a_wrong_line_of_a_file_ends_with_2_and_says_where(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# ours\nnum.partitions=none\n")
    result = CliRunner().invoke(cli, ["serve", "--config", str(path)])
    assert result.exit_code == 2
    assert f"{path}:2" in result.stderr


def test_a_file_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["serve", "--config", str(tmp_path / "absent.toml")])
    assert result.exit_code == 2
