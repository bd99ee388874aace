"""Jobs: their sources, a function from DataFrames to a DataFrame, and their sink.

Owns the declaration of a job and how it is found in its file, and refuses one that could not run before Spark starts.
It must not know how a job is run. A job's file imports nothing but this:

    from tailrace.pipeline.jobs import Table, Topic, job

    @job(source=Topic("orders", schema="id STRING, amount DOUBLE"), sink=Table("large-orders"))
    def large_orders(orders: DataFrame, *, least: float = 100.0) -> DataFrame:
        return orders.where(orders.amount >= least)

Each source is one parameter. Parameters after the star are options of the command line: `--least 500`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeAlias, get_args

from tailrace.errors import ConfigError
from tailrace.model import topic_name_problem
from tailrace.pipeline.arrow.formats import FORMATS, Format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

P = ParamSpec("P")

OutputMode: TypeAlias = Literal["append", "update"]
_NOTHING: Mapping[str, str] = MappingProxyType({})
#: The types of a job's options; a command line has no other values.
_OPTION_TYPES = (str, int, float, bool)
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class JobError(ConfigError):
    """A job is declared in a way that it cannot run; the message says where and what is expected."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic to read from, with its values decoded into columns, or to write to, with the rows as JSON values.

    Beside the fields of a value there are `_key`, `_partition`, `_offset`, `_timestamp`, `_value` and `_corrupt`, which
    holds the value if it could not be decoded; it is null unless the job has no dead letters. A sink omits these
    columns, except one that is its key.
    """

    name: str
    format: Format = "json"
    #: For a source: the fields of a value, as `id STRING, amount DOUBLE`, a StructType, or an Avro schema; or its file.
    schema: str | StructType | None = None
    #: For a sink: the column with the record's key.
    key: str | None = None
    #: For a source: where a job without a checkpoint begins: `earliest`, `latest` or JSON as for Spark.
    starting_offsets: str = "earliest"
    #: Further options of the data source.
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Table:
    """A directory of Parquet files to which rows are appended, each exactly once."""

    path: str
    partition_by: tuple[str, ...] = ()
    #: Further options of Spark's file sink.
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


class _BesideTheSink:
    """The default for dead letters: beside the sink, and of the same kind."""

    def __repr__(self) -> str:
        return "BESIDE_THE_SINK"


BESIDE_THE_SINK = _BesideTheSink()
_DEAD_LETTERS = "-dead-letters"


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter of a job that the command line may set."""

    name: str
    type: type[str] | type[int] | type[float] | type[bool]
    #: None if it is required.
    default: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Job(Generic[P]):
    """One job; calling it applies its function, so that a test needs no topics."""

    name: str
    function: Callable[P, DataFrame]
    sources: tuple[Topic, ...]
    sink: Topic | Table
    output_mode: OutputMode
    conf: Mapping[str, str]
    options: tuple[Option, ...]
    #: Where records with undecodable values go; None if the function gets them, with null fields.
    dead_letters: Topic | Table | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> DataFrame:
        return self.function(*args, **kwargs)


def job(
    *,
    source: Topic | Sequence[Topic],
    sink: Topic | Table,
    name: str | None = None,
    output_mode: OutputMode = "append",
    conf: Mapping[str, str] = _NOTHING,
    dead_letters: Topic | Table | _BesideTheSink | None = BESIDE_THE_SINK,
) -> Callable[[Callable[P, DataFrame]], Job[P]]:
    """Turn a function into a job; its name is the function's with `-` for `_`, and `conf` has settings of Spark.

    Records with undecodable values do not reach the function: they go to `dead_letters`, by default a topic or table
    named after the sink. With `dead_letters=None` the function gets them, and `_corrupt` holds their values.
    """

    def make(function: Callable[P, DataFrame]) -> Job[P]:
        chosen = function.__name__.strip("_").replace("_", "-") if name is None else name
        sources = (source,) if isinstance(source, Topic) else tuple(source)
        _check(chosen, sources, sink, output_mode)
        options = _options(chosen, function, len(sources))
        letters = _beside(sink) if isinstance(dead_letters, _BesideTheSink) else dead_letters
        _check_dead_letters(chosen, sources, sink, letters)
        return Job(chosen, function, sources, sink, output_mode, MappingProxyType(dict(conf)), options, letters)

    return make


# --- checks


def _check(name: str, sources: Sequence[object], sink: object, output_mode: str) -> None:
    if not name or name in (".", "..") or not _NAME_CHARACTERS.issuperset(name):
        raise JobError(f"'{name}' is not a valid name for a job; use letters, digits, '.', '_' and '-'")
    if not sources:
        raise JobError(f"job '{name}' has no source; name a topic: source=Topic(...)")
    for each in sources:
        if not isinstance(each, Topic):
            raise JobError(f"a source of job '{name}' is {_described(each)}; expected Topic(...)")
        if each.key is not None:
            raise JobError(f"job '{name}' reads topic '{each.name}' with key={each.key!r}; only a sink has a key")
    if not isinstance(sink, Topic | Table):
        raise JobError(f"the sink of job '{name}' is {_described(sink)}; expected Topic(...) or Table(...)")
    if isinstance(sink, Topic):
        if sink.schema is not None:
            raise JobError(f"job '{name}' writes topic '{sink.name}' with a schema; the written rows have their own")
        if sink.format == "avro":
            raise JobError(f"job '{name}' writes topic '{sink.name}' as avro; a sink must be json, text or raw")
    for each in (*sources, sink):
        if isinstance(each, Topic) and each.format not in FORMATS:
            raise JobError(
                f"topic '{each.name}' of job '{name}' has format '{each.format}'; expected json, avro, text or raw"
            )
    if output_mode not in get_args(OutputMode):
        raise JobError(f"job '{name}' has output_mode '{output_mode}'; expected append or update")
    if output_mode == "update" and isinstance(sink, Table):
        raise JobError(f"job '{name}' updates a table; a table can only be appended to, so omit output_mode")


def _beside(sink: Topic | Table) -> Topic | Table:
    if isinstance(sink, Table):
        return Table(sink.path.rstrip("/") + _DEAD_LETTERS)
    return Topic(sink.name + _DEAD_LETTERS, format="raw")


def _check_dead_letters(name: str, sources: Sequence[Topic], sink: Topic | Table, letters: object) -> None:
    if letters is None:
        return
    if not isinstance(letters, Topic | Table):
        raise JobError(
            f"dead_letters of job '{name}' is {_described(letters)}; expected Topic(...), Table(...) or None"
        )
    if isinstance(letters, Topic):
        problem = topic_name_problem(letters.name)
        if problem is not None:
            raise JobError(
                f"the dead letters of job '{name}': {problem}; name another topic with dead_letters=Topic(...)"
            )
        if letters.name in [source.name for source in sources]:
            raise JobError(
                f"job '{name}' reads topic '{letters.name}', so its dead letters would come back to it; "
                "name another topic"
            )
    if letters == sink:
        raise JobError(f"the dead letters of job '{name}' go to its sink; name another topic or table")


def _options(name: str, function: Callable[..., Any], sources: int) -> tuple[Option, ...]:
    """Return the options of a job, from its function's parameters; JobError if they do not match its sources."""
    frames = 0
    options: list[Option] = []
    annotations = _annotations(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            frames += 1
        elif parameter.kind is parameter.KEYWORD_ONLY:
            options.append(_option(name, parameter, annotations.get(parameter.name)))
        else:
            raise JobError(f"job '{name}' takes *{parameter.name}; give each source its own parameter")
    if frames != sources:
        topics = "1 topic" if sources == 1 else f"{sources} topics"
        taken = "1 DataFrame" if frames == 1 else f"{frames} DataFrames"
        raise JobError(f"job '{name}' reads {topics}, but its function takes {taken}; options come after a *")
    return tuple(options)


def _option(job_name: str, parameter: inspect.Parameter, hint: object) -> Option:
    default = None if parameter.default is parameter.empty else parameter.default
    kind = hint if hint in _OPTION_TYPES else type(default) if default is not None and hint is None else None
    for each in _OPTION_TYPES:
        if kind is each:
            return Option(parameter.name, each, default)
    raise JobError(f"option '{parameter.name}' of job '{job_name}' must be annotated as str, int, float or bool")


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the options; a name that only a type checker sees, as DataFrame may be, is None."""
    found: dict[str, Any] = {}
    names = {each.__name__: each for each in _OPTION_TYPES}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        found[name] = names.get(annotation) if isinstance(annotation, str) else annotation
    return found


def _described(value: object) -> str:
    return f"{value!r}, a {type(value).__name__}"


# --- loading


def load(path: Path) -> dict[str, Job[...]]:
    """Return the jobs in a file by name, in its order; JobError if it cannot be run or has none."""
    module = _run_file(path)
    found = {each.name: each for each in vars(module).values() if isinstance(each, Job)}
    if not found:
        raise JobError(f"{path} has no job; put @job(source=..., sink=...) before a function in it")
    return found


def choose(jobs: Mapping[str, Job[...]], name: str | None, path: Path) -> Job[...]:
    """Return the job with this name, or the only one."""
    names = ", ".join(jobs)
    if name is None:
        if len(jobs) > 1:
            raise JobError(f"{path} has {len(jobs)} jobs: {names}; choose one with --job")
        return next(iter(jobs.values()))
    if name not in jobs:
        raise JobError(f"{path} has no job '{name}'; it has {names}")
    return jobs[name]


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise JobError(f"file {path} does not exist")
    # A unique module name: a job's file may be called json.py.
    name = f"tailrace_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JobError(f"{path} is not a Python file; the name of a job's file must end in .py")
    module = importlib.util.module_from_spec(spec)
    # As for any script, modules beside the file can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except JobError as error:
        raise JobError(f"{path}{_line_of(error, path)}: {error}") from error
    except SyntaxError as error:
        raise JobError(f"{error.filename or path}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        raise JobError(f"{path}{_line_of(error, path)}: {type(error).__name__}: {error}") from error
    _pickle_by_value(module)
    return module


def _line_of(error: BaseException, path: Path) -> str:
    """Return `, line 7`: the last line of the file itself that was running."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f", line {lines[-1]}" if lines else ""


def _pickle_by_value(module: ModuleType) -> None:
    """Send functions of the file to Spark's workers by value: workers cannot import the file."""
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(module)  # type: ignore[no-untyped-call]
