"""The Python that Spark's workers run in: this one, with PySpark from where it is installed, and loaded before.

Spark puts a zip of PySpark first on its workers' path, and Python compiles what it takes from a zip at every start: a
second of each kind of worker, of which the first row of a query waits for four. So this goes in Python's place
(`PYSPARK_PYTHON`), takes the zip off the path where the same installation has PySpark as a folder, and lets workers be
forks of a process that has loaded it (`warm_python`). Everything else is left to Python as it is.

It is started for every kind of worker: what it imports, each of them waits for.
"""

from __future__ import annotations

import os
import sys

#: The name of the command, beside Python in the folder of commands.
COMMAND = "tailrace-spark-python"
_ZIP = os.path.join("python", "lib", "pyspark.zip")


def main() -> None:
    """What Python would do with these arguments."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m":
        if arguments[:1] == ["-c"]:
            from tailrace.pipeline.spark.warm_python import prepare

            prepare()
        os.execv(sys.executable, [sys.executable, *arguments])
    if not sys.flags.safe_path:
        # The folder of this command is there, in place of the one in which modules are looked for.
        sys.path[0] = os.getcwd()
    sys.path[:] = without_zip(sys.path)

    from tailrace.pipeline.spark.warm_python import stand_for_fork

    if stand_for_fork(arguments, sys.path):
        return
    import runpy

    sys.argv = arguments[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def without_zip(path: list[str]) -> list[str]:
    """A path of modules without Spark's zip, unless its PySpark is nowhere else on it."""
    return [entry for entry in path if not (entry.endswith(_ZIP) and _is_installed(entry, path))]


def _is_installed(zip_file: str, path: list[str]) -> bool:
    """Whether the folder is there of which the zip has a copy, and modules are looked for in it."""
    package = zip_file.removesuffix(_ZIP).rstrip(os.sep)
    if os.path.basename(package) != "pyspark" or not os.path.isfile(os.path.join(package, "__init__.py")):
        return False
    # By whatever links they are reached.
    return os.path.realpath(os.path.dirname(package)) in map(os.path.realpath, path)


def command_beside_python() -> str:
    """The path of this command; Python's own where only the package is there, and none of its commands."""
    command = os.path.join(os.path.dirname(sys.executable), COMMAND)
    return command if os.access(command, os.X_OK) else sys.executable
