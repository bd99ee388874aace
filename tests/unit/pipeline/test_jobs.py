"""How jobs are written and found: what a file gives, and what is refused before Spark is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.pipeline.jobs.declaration import JobError, Option, Table, Topic, choose, job, load

HEAD = "from tailrace.pipeline.jobs.declaration import Table, Topic, job\n"
ONE = HEAD + '@job(source=Topic("orders"), sink=Table("t"))\ndef one(orders): return orders\n'


@pytest.fixture
def job_file(tmp_path: Path) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path / "my_job.py"
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("tailrace_job_"):
            del sys.modules[name]


def test_a_job_has_the_name_of_its_function_its_topics_and_its_options() -> None:
    @job(source=(Topic("orders"), Topic("payments")), sink=Topic("paid", key="id"), conf={"a": "b"})
    def paid_orders(orders: Any, payments: Any, *, least: float = 1.5, label: str, exact: bool = False) -> Any:
        return (orders, payments, least, label, exact)

    assert paid_orders.name == "paid-orders"
    assert [source.name for source in paid_orders.sources] == ["orders", "payments"]
    assert paid_orders.options == (
        Option("least", float, 1.5),
        Option("label", str, None),
        Option("exact", bool, False),
    )
    assert paid_orders.conf == {"a": "b"}
    assert paid_orders(1, 2, label="x") == (1, 2, 1.5, "x", False)


def test_an_option_without_annotation_is_of_the_type_of_its_default() -> None:
    @job(source=Topic("orders"), sink=Table("t"))
    def some(orders, *, count=3):  # type: ignore[no-untyped-def]
        return orders

    assert some.options == (Option("count", int, 3),)


def _takes_one(orders: Any) -> Any:
    return orders


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"source": (), "sink": Table("t")}, "has no source"),
        ({"source": ("orders",), "sink": Table("t")}, "is 'orders', a str; expected Topic"),
        ({"source": Topic("orders", key="id"), "sink": Table("t")}, "only a sink has a key"),
        ({"source": Topic("orders"), "sink": "t"}, "is 't', a str; expected Topic"),
        ({"source": Topic("orders"), "sink": Topic("t", schema="id LONG")}, "with a schema"),
        ({"source": Topic("orders"), "sink": Topic("t", format="avro")}, "a sink must be json, text or raw"),
        ({"source": Topic("orders", format="xml"), "sink": Table("t")}, "expected json, avro, text or raw"),
        ({"source": Topic("orders"), "sink": Table("t"), "output_mode": "complete"}, "expected append or update"),
        ({"source": Topic("orders"), "sink": Table("t"), "output_mode": "update"}, "can only be appended to"),
        ({"source": Topic("orders"), "sink": Table("t"), "name": "a/b"}, "is not a valid name for a job"),
        ({"source": Topic("orders"), "sink": Table("t"), "name": ".."}, "is not a valid name for a job"),
        (
            {"source": (Topic("a"), Topic("b")), "sink": Table("t")},
            "reads 2 topics, but its function takes 1 DataFrame",
        ),
    ],
)
def test_a_job_that_cannot_run_is_refused_where_it_is_written(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(JobError) as caught:
        job(**arguments)(_takes_one)
    assert complaint in str(caught.value)


def test_parameters_that_no_command_line_can_set_are_refused() -> None:
    with pytest.raises(JobError, match="annotated as str, int, float or bool"):

        @job(source=Topic("orders"), sink=Table("t"))
        def listed(orders: Any, *, names: list[str]) -> Any: ...

    with pytest.raises(JobError, match="its own parameter"):

        @job(source=Topic("orders"), sink=Table("t"))
        def many(*orders: Any) -> Any: ...


def test_the_only_job_of_a_file_needs_no_name_and_one_of_two_does(job_file: Path) -> None:
    job_file.write_text(ONE)
    assert choose(load(job_file), None, job_file).name == "one"
    job_file.write_text(ONE + '@job(source=Topic("orders"), sink=Table("t"))\ndef two(orders): return orders\n')
    jobs = load(job_file)
    assert choose(jobs, "two", job_file).name == "two"
    with pytest.raises(JobError, match=r"has 2 jobs: one, two; choose one with --job"):
        choose(jobs, None, job_file)
    with pytest.raises(JobError, match=r"has no job 'three'; it has one, two"):
        choose(jobs, "three", job_file)


def test_a_file_that_imports_what_lies_beside_it_is_loaded(job_file: Path) -> None:
    job_file.with_name("tailrace_job_names.py").write_text('TOPIC = "orders"\n')
    job_file.write_text("from tailrace_job_names import TOPIC\n" + ONE.replace('"orders"', "TOPIC"))
    assert load(job_file)["one"].sources[0].name == "orders"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n", "has no job; put @job"),
        ("def broken(:\n", "my_job.py, line 1: invalid syntax"),
        ("import nothing_of_that_name\n", "my_job.py, line 1: ModuleNotFoundError: No module named"),
        ("x = 1\n\ny = 1 / 0\n", "my_job.py, line 3: ZeroDivisionError: division by zero"),
        (HEAD + '\n@job(source=Topic("a"))\ndef f(a): ...\n', "my_job.py, line 3: TypeError: job() missing"),
        (HEAD + '@job(source="a", sink=Table("t"))\ndef f(a): ...\n', "my_job.py, line 2: a source of job 'f' is 'a'"),
    ],
)
def test_a_file_that_cannot_be_run_is_named_with_its_line(job_file: Path, text: str, complaint: str) -> None:
    job_file.write_text(text)
    with pytest.raises(JobError) as caught:
        load(job_file)
    assert complaint in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"file .*nowhere\.py does not exist"):
        load(tmp_path / "nowhere.py")
    (tmp_path / "job.txt").write_text(ONE)
    with pytest.raises(JobError, match=r"must end in \.py"):
        load(tmp_path / "job.txt")
