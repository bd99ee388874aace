"""Spark's failures in users' words: what went wrong first, without a Java stack trace.

Spark puts everything into an exception's text: the user's exception at the end of a Python traceback, an error
condition in brackets, a position in the query, and around them the place within Spark. The texts are parsed here
without the Java process, which may be gone. This module must not know what was run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tailrace.errors import TailraceError

_TRACEBACK = "Traceback (most recent call last):"
#: What Spark appends to a message, or to a traceback that it quotes.
_BEHIND = re.compile(r"\s*(SQLSTATE: \w{5}\b|\n\s+at |\n=== Streaming Query ===|\n== SQL|\n\nDriver stacktrace:|\n\n)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)\n(?:    (?P<code>.+)\n)?')
_SPARKS_OWN = ("/pyspark/", "/pyspark.zip/", "/py4j/", "<frozen ")
_RAISED = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)
_POSITION = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_FROM_ONE = re.compile(r"== SQL (?:of \S+ \S+ )?\(line (\d+), position (\d+)\) ==")
_JAVA_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z][\w$]*: ")
_LOST_TASK = re.compile(r"\(TID \d+\) \([^)]*\): ")
_COLUMN = re.compile(r".*with name (`.+?`) cannot be resolved(?:\. Did you mean one of the following\? \[(.*)\])?")
_GONE = "Spark's Java process has ended; if memory ran out, give it more with --conf spark.driver.memory=4g"
_NO_MEMORY = "Spark ran out of memory ({}); give it more with --conf spark.driver.memory=4g"
_NO_WORKER = "a Python worker of Spark ended unexpectedly; it crashed, or was killed because memory ran out"


class PipelineError(TailraceError):
    """Spark refused or failed; the message is the user's problem, the notes say where it is."""


@dataclass(frozen=True, slots=True)
class Words:
    """A failure in words: the problem, and lines that help to find it."""

    problem: str
    notes: tuple[str, ...] = ()


@contextmanager
def in_users_words(query: str | None = None) -> Iterator[None]:
    """Convert Spark's exceptions to `PipelineError`; with the query, its notes point into it."""
    try:
        yield
    except TailraceError:
        raise
    except Exception as error:
        if not _is_sparks(error):
            raise
        told = words_of(_text_of(error), query)
        translated = PipelineError(told.problem)
        for note in told.notes:
            translated.add_note(note)
        raise translated from error


def first_line(error: BaseException) -> str:
    """Return the subject of a Spark exception in one line."""
    return words_of(_text_of(error)).problem.splitlines()[0] if str(error) else type(error).__name__


def words_of(text: str, query: str | None = None) -> Words:
    """Parse the text of a Spark exception."""
    if _TRACEBACK in text:
        return _raised_in_python(text[text.rindex(_TRACEBACK) + len(_TRACEBACK) :].lstrip("\n"))
    if "java.lang.OutOfMemoryError" in text:
        reason = text.split("java.lang.OutOfMemoryError", 1)[1].removeprefix(": ").splitlines()[0]
        return Words(_NO_MEMORY.format(reason or "the heap is full"))
    if "Python worker exited unexpectedly" in text:
        return Words(_NO_WORKER)
    return Words(_problem(text), _pointer(text, query))


def _raised_in_python(trace: str) -> Words:
    """Return the exception at the end of a traceback, and the last place in it outside of Spark's own code."""
    frames = list(_FRAME.finditer(trace))
    start = frames[-1].end() if frames else 0
    # There may be markers between the code of a frame and the exception.
    ending = re.sub(r"\A(?: +[~^ ]*\n)+", "", trace[start:])
    behind = _BEHIND.search(ending)
    raised = _RAISED.match((ending[: behind.start()] if behind else ending).strip())
    if raised is None:
        return Words("a Python worker of Spark failed without saying why")
    message = raised["message"] or ""
    if raised["kind"].startswith("tailrace.") and message:
        return Words(message)
    kind = raised["kind"].removeprefix("builtins.")
    notes = tuple(
        f"  {frame['file']}, line {frame['line']}, in {frame['function']}"
        + (f": {frame['code'].strip()}" if frame["code"] else "")
        for frame in frames
        if not any(part in frame["file"] for part in _SPARKS_OWN)
    )
    return Words(f"{kind}: {message}" if message else kind, notes[-1:])


def _problem(text: str) -> str:
    told = text.strip()
    for wrapper in (" terminated with exception: ", "most recent failure: "):
        told = told.rsplit(wrapper, 1)[-1]
    lost = _LOST_TASK.search(told)
    if lost is not None:
        told = told[lost.end() :]
    condition = _CONDITION.search(told)
    if condition is not None:
        told = told[condition.end() :]
    else:
        # "An error occurred while calling o1.load.\n: java.io.IOException: …" with the reason at its very end.
        told = told.rsplit("\nCaused by: ", 1)[-1].split("\n: ", 1)[-1]
        told = _JAVA_CLASS.sub("", told)
    behind = _BEHIND.search(told)
    told = (told[: behind.start()] if behind else told).strip()
    column = _COLUMN.fullmatch(told.rstrip("."))
    if column is not None:
        near = f"; did you mean {column[2].rstrip('.')}?" if column[2] else ""
        return f"there is no column {column[1]}{near}"
    return told.splitlines()[0].rstrip(".") if told else "Spark failed without saying why"


def _pointer(text: str, query: str | None) -> tuple[str, ...]:
    """Return the line of the query that a position in the text refers to, and a caret under it, as in psql."""
    if query is None:
        return ()
    # Spark counts columns from 1 in one form and from 0 in the other.
    counted = _FROM_ONE.search(text)
    position = counted or _POSITION.search(text)
    lines = query.splitlines()
    if position is None or not 0 < int(position[1]) <= len(lines):
        return ()
    head = f"LINE {position[1]}: "
    line = lines[int(position[1]) - 1]
    column = min(int(position[2]) - (1 if counted else 0), len(line))
    return (head + line, " " * len(head) + re.sub(r"[^\t]", " ", line[:column]) + "^")


def _is_sparks(error: Exception) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError | ConnectionRefusedError)


def _text_of(error: BaseException) -> str:
    from py4j.protocol import Py4JJavaError, Py4JNetworkError

    if isinstance(error, Py4JNetworkError | ConnectionRefusedError):
        return _GONE
    if isinstance(error, Py4JJavaError):
        try:
            return str(error)
        except (Py4JNetworkError, OSError):
            return _GONE
    # Captured when the exception was created; reading it again needs the Java process.
    return str(getattr(error, "_desc", None) or error)
