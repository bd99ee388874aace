"""What a user reads after a failure in Spark: the problem first, where it is, and no Java stack trace."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError, TailraceError
from tailrace.pipeline.spark.errors import PipelineError, in_users_words, words_of

JAVA_TRACE = (
    "\n\tat org.apache.spark.sql.classic.Dataset.collect(Dataset.scala:1)\n\tat java.base/java.lang.Thread.run(T:840)"
)
COLUMN = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `idd` cannot be "
    "resolved. Did you mean one of the following? [`id`, `total`]. SQLSTATE: 42703; line 2 pos 7;\n"
    "'Project ['idd]\n+- SubqueryAlias orders\n"
)
SYNTAX = (
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near '='. SQLSTATE: 42601 (line 2, pos 18)\n\n"
    "== SQL ==\nSELECT id\nFROM t WHERE id = = 3\n------------------^^^\n"
)
DIVISION = (
    "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate it. SQLSTATE: 22012\n"
    "== SQL (line 1, position 8) ==\nSELECT id/0 FROM t\n       ^^^^\n"
)
WORKER = (
    "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    '  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 4207, in invoke_udf\n'
    "    process()\n"
    '  File "/home/me/job.py", line 48, in price\n'
    "    return prices[name]\n"
    "           ~~~~~~^^^^^^\n"
    "KeyError: 'apple'\n"
)


def test_an_unknown_column_is_told_with_near_ones_and_its_place() -> None:
    told = words_of(COLUMN, "SELECT id,\n       idd FROM orders")
    assert told.problem == "there is no column `idd`; did you mean `id`, `total`?"
    assert told.notes == ("LINE 2:        idd FROM orders", "               ^")


def test_an_unknown_column_without_near_ones_is_told_alone() -> None:
    text = "[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] A column, variable, or function parameter with name `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 7"  # noqa: E501
    assert words_of(text).problem == "there is no column `x`"


def test_a_syntax_error_points_where_the_parser_stopped() -> None:
    told = words_of(SYNTAX, "SELECT id\nFROM t WHERE id = = 3")
    assert told.problem == "Syntax error at or near '='"
    assert told.notes == ("LINE 2: FROM t WHERE id = = 3", "                          ^")


def test_a_position_counted_from_one_points_at_the_same_place() -> None:
    told = words_of(DIVISION, "SELECT id/0 FROM t")
    assert told.problem == "Division by zero. Use `try_divide` to tolerate it"
    assert told.notes == ("LINE 1: SELECT id/0 FROM t", "               ^")


def test_a_caret_stands_right_behind_tabs() -> None:
    told = words_of(COLUMN.replace("line 2 pos 7", "line 1 pos 2"), "\t\tidd")
    assert told.notes == ("LINE 1: \t\tidd", "        \t\t^")


@pytest.mark.parametrize("position", ["line 9 pos 1", "nowhere"])
def test_a_position_outside_of_the_query_points_nowhere(position: str) -> None:
    assert words_of(COLUMN.replace("line 2 pos 7", position), "SELECT idd").notes == ()


def test_without_the_query_nothing_is_pointed_at() -> None:
    assert words_of(SYNTAX).notes == ()


def test_an_exception_in_the_users_function_is_told_with_its_line() -> None:
    told = words_of(WORKER)
    assert told.problem == "KeyError: 'apple'"
    assert told.notes == ("  /home/me/job.py, line 48, in price: return prices[name]",)


def test_an_exception_of_our_own_is_told_by_its_message_alone() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):\n"
        '  File "/venv/tailrace/pipeline/source/options.py", line 81, in _unknown\n    raise OptionError(text)\n'
        "tailrace.pipeline.failures.OptionError: unknown option 'x'; did you mean 'assign'?\n SQLSTATE: 38000"
    )
    told = words_of(text + JAVA_TRACE)
    assert (told.problem, told.notes) == ("unknown option 'x'; did you mean 'assign'?", ())


def test_of_chained_exceptions_the_last_is_told() -> None:
    text = (
        WORKER
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + WORKER.replace("KeyError: 'apple'", "ValueError: no such fruit")
    )
    assert words_of(text).problem == "ValueError: no such fruit"


def test_a_message_of_several_lines_is_told_whole() -> None:
    text = WORKER.replace(
        "KeyError: 'apple'\n", "ValueError: two\nlines\n SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming"
    )
    assert words_of(text).problem == "ValueError: two\nlines"


def test_a_stream_tells_what_ended_it() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 22fd17b5, runId = 19e867f4] terminated with exception: "
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x"
    )
    assert words_of(text).problem == "Division by zero"


def test_an_aborted_job_tells_why_its_task_failed() -> None:
    text = (
        "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job aborted due to stage "
        "failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) "
        "(host executor driver): java.io.FileNotFoundException: /data/x (Permission denied)" + JAVA_TRACE
    )
    assert words_of(text).problem == "/data/x (Permission denied)"


def test_an_exception_of_javas_is_told_by_its_cause_without_a_trace() -> None:
    text = (
        "An error occurred while calling o1.load.\n: java.lang.RuntimeException: wrapped"
        + JAVA_TRACE
        + "\nCaused by: java.io.IOException: disk is gone"
        + JAVA_TRACE
    )
    assert words_of(text).problem == "disk is gone"


def test_a_full_heap_says_how_to_give_more() -> None:
    told = words_of("An error occurred.\n: java.lang.OutOfMemoryError: Java heap space" + JAVA_TRACE)
    assert told.problem.startswith("Spark ran out of memory (Java heap space)")
    assert "spark.driver.memory" in told.problem


def test_a_worker_that_died_is_named() -> None:
    text = "[X] Python worker exited unexpectedly (crashed)\nCaused by: java.io.EOFException" + JAVA_TRACE
    assert words_of(text).problem.startswith("a Python worker of Spark ended unexpectedly")


def test_nothing_said_is_still_told() -> None:
    assert words_of("").problem == "Spark failed without saying why"


def test_errors_of_spark_become_ours_and_keep_their_cause() -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PipelineError, match="there is no column") as caught, in_users_words("SELECT id,\n       idd"):
        raise PySparkException(COLUMN)
    assert isinstance(caught.value.__cause__, PySparkException)
    assert caught.value.__notes__ == ["LINE 2:        idd", "               ^"]


def test_a_java_process_that_is_gone_is_told_as_that() -> None:
    from py4j.protocol import Py4JNetworkError

    with pytest.raises(PipelineError, match="Spark's Java process has ended"), in_users_words():
        raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize("error", [ConfigError("mine"), TailraceError("mine"), ValueError("mine"), KeyboardInterrupt()])
def test_what_is_not_sparks_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, in_users_words():
        raise error
    assert caught.value is error
