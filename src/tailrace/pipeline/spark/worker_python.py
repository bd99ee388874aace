"""The Python of Spark's workers: this one, with the installed PySpark, loaded in advance.

Spark puts a zip of PySpark first on its workers' path, and Python compiles everything from a zip at every start: a
second for each kind of worker, and the first row of a query waits for four kinds. So this command replaces Python
(`PYSPARK_PYTHON`), removes the zip from the path if the same installation has PySpark as a folder, and lets workers be
forks of a process that has already loaded it (`warm_python`). Everything else is passed to Python unchanged.

It is started for every kind of worker, so each of them waits for its imports.
"""

from __future__ import annotations

import os
import sys

#: The name of the command, which is beside Python in the folder of commands.
COMMAND = "tailrace-spark-python"
_ZIP = os.path.join("python", "lib", "pyspark.zip")


def main() -> None:
    """Do what Python would do with these arguments."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m":
        if arguments[:1] == ["-c"]:
            from tailrace.pipeline.spark.warm_python import prepare

            prepare()
        os.execv(sys.executable, [sys.executable, *arguments])
    if not sys.flags.safe_path:
        # It contains this command's folder instead of the one in which modules are searched.
        sys.path[0] = os.getcwd()
    sys.path[:] = without_zip(sys.path)

    from tailrace.pipeline.spark.warm_python import stand_for_fork

    if stand_for_fork(arguments, sys.path):
        return
    import runpy

    sys.argv = arguments[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def without_zip(path: list[str]) -> list[str]:
    """Return a path of modules without Spark's zip, unless its PySpark is nowhere else on it."""
    return [entry for entry in path if not (entry.endswith(_ZIP) and _is_installed(entry, path))]


def _is_installed(zip_file: str, path: list[str]) -> bool:
    """True if the folder that the zip was made from exists, and is on the path of modules."""
    package = zip_file.removesuffix(_ZIP).rstrip(os.sep)
    if os.path.basename(package) != "pyspark" or not os.path.isfile(os.path.join(package, "__init__.py")):
        return False
    # Whatever links lead to them.
    return os.path.realpath(os.path.dirname(package)) in map(os.path.realpath, path)


def command_beside_python() -> str:
    """Return the path of this command, or Python's own if the command is not installed."""
    command = os.path.join(os.path.dirname(sys.executable), COMMAND)
    return command if os.access(command, os.X_OK) else sys.executable
