"""A job's checkpoint: where it is, and whether it belongs to the job that is to run.

Owns the location of checkpoints and reads the offsets in one. Spark itself writes them, and continues from the last
one. It would also continue with another topic's offsets, so a checkpoint of other sources is refused here. A checkpoint
may be on any file system that Spark supports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError
from tailrace.pipeline.source.progress import offsets_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The first lines of an offset file: its version, and the batch's metadata. A line for each source follows.
_HEAD_LINES = 2
_NO_OFFSET = "-"


class CheckpointError(ConfigError):
    """The checkpoint belongs to another job."""


def default_root(cluster_id: str) -> str:
    """Return the default location; each cluster has its own, as its offsets mean nothing in another one."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return str(base / "tailrace" / "pipeline" / cluster_id)


def location(root: str, job: str) -> str:
    """Return the directory of one job's checkpoint."""
    return f"{absolute(root).rstrip('/')}/{job}"


def absolute(path: str) -> str:
    """Make a path absolute, as Spark may have another working directory; a path without a scheme is on this machine."""
    return path if ":/" in path else str(Path(path).expanduser().absolute())


def check_sources(spark: SparkSession, checkpoint: str, job: str, topics: Sequence[str]) -> None:
    """Refuse a checkpoint whose last offsets belong to other topics than the job reads, or to another order of them."""
    text = _last_offsets(spark, checkpoint)
    if text is None:
        return
    kept = topics_in(text)
    if kept is None or is_of(kept, topics):
        return
    were = " and ".join(", ".join(sorted(each)) or "an empty topic" for each in kept)
    raise CheckpointError(
        f"the checkpoint of job '{job}' belongs to a job that reads {were}, but this one reads "
        f"{' and '.join(topics)}; give the job another name or another --checkpoint, or start over by deleting "
        f"{checkpoint}"
    )


def is_of(kept: Sequence[set[str]], topics: Sequence[str]) -> bool:
    """True if each source in a checkpoint has the expected topic; a source without partitions yet matches any."""
    return len(kept) == len(topics) and all(each <= {name} for each, name in zip(kept, topics, strict=True))


def topics_in(text: str) -> list[set[str]] | None:
    """Return the topics of each source in an offset file; None if its version is unknown."""
    lines = text.splitlines()
    if not lines or lines[0] != "v1":
        return None
    found: list[set[str]] = []
    for line in lines[_HEAD_LINES:]:
        offset = {} if line == _NO_OFFSET else json.loads(line)
        found.append({topic for topic, _ in offsets_of(offset)})
    return found


def _last_offsets(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the newest offset file of a checkpoint, None if there is none yet."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets")
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(path):
        return None
    numbers = [int(name) for each in files.listStatus(path) if (name := each.getPath().getName()).isdecimal()]
    return read_text(spark, f"{checkpoint}/offsets/{max(numbers)}") if numbers else None


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """True if a batch was ever planned with a checkpoint."""
    return _last_offsets(spark, checkpoint) is not None


def read_text(spark: SparkSession, path: str) -> str | None:
    """Read a file on any file system of Spark's; None if it does not exist."""
    jvm: Any = spark.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(place):
        return None
    stream = files.open(place)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a whole file at once, replacing any earlier one."""
    jvm: Any = spark.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    part = jvm.org.apache.hadoop.fs.Path(place.getParent(), f".{place.getName()}.part")
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    stream = place.getFileSystem(conf).create(part, True)
    try:
        jvm.org.apache.commons.io.IOUtils.write(text, stream, "UTF-8")
    finally:
        stream.close()
    rename = jvm.org.apache.hadoop.fs.Options.Rename
    overwrite = spark.sparkContext._gateway.new_array(rename, 1)  # type: ignore[union-attr]
    overwrite[0] = rename.OVERWRITE
    jvm.org.apache.hadoop.fs.FileContext.getFileContext(place.toUri(), conf).rename(part, place, overwrite)
