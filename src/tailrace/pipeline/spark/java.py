"""The Java that Spark would start, checked before it does.

Spark's own message about a missing or outdated Java is a stack trace or a line of a shell script. This module must not
know Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from tailrace.errors import TailraceError

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ADVICE = (
    f"install Java {OLDEST_JAVA} or later (Debian, Ubuntu: apt-get install default-jre-headless), "
    "or set JAVA_HOME to where it is"
)


class JavaError(TailraceError):
    """There is no Java that Spark can run on."""


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raise `JavaError` unless the Java that Spark's scripts use exists and is recent enough."""
    home = environment.get("JAVA_HOME")
    if home:
        command = os.path.join(home, "bin", "java")
        if not os.access(command, os.X_OK):
            raise JavaError(f"Spark needs Java, but JAVA_HOME is {home}, which has no bin/java; {_ADVICE}")
    else:
        found = shutil.which("java", path=environment.get("PATH", os.defpath))
        if found is None:
            raise JavaError(f"Spark needs Java, but none was found; {_ADVICE}")
        command = found
    version = _version(command, environment)
    if version < OLDEST_JAVA:
        raise JavaError(f"Spark needs Java {OLDEST_JAVA} or later, but {command} is Java {version}; {_ADVICE}")


def _version(command: str, environment: Mapping[str, str]) -> int:
    try:
        answer = subprocess.run(
            [command, "-version"], env=dict(environment), capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"Spark needs Java, but {command} does not run ({error}); {_ADVICE}") from error
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        said = (answer.stderr + answer.stdout).strip().splitlines()
        reason = said[0] if said else f"exit code {answer.returncode}"
        raise JavaError(f"Spark needs Java, but {command} does not report its version ({reason}); {_ADVICE}")
    return int(match[1])
