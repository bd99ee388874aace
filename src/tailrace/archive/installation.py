"""Whether the packages for reading archives are installed; they are large, so a broker can run without them."""

from __future__ import annotations

from importlib.util import find_spec

from tailrace.archive.errors import ArchiveDependencyError

_NEEDED = ("numpy", "pyarrow")


def can_read_archives() -> bool:
    """Whether this installation can read archives."""
    return not _missing()


def require_packages() -> None:
    """Raise an error that says what to install, unless this installation can read archives."""
    if missing := _missing():
        raise ArchiveDependencyError(
            f"reading archives needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed: pip install 'tailrace[archive]'"
        )


def _missing() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]
