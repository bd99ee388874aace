"""Whether the packages are installed that archives are read with; they are large, so a broker starts without them."""

from __future__ import annotations

from importlib.util import find_spec

from tailrace.archive.errors import ArchiveDependencyError

_NEEDED = ("numpy", "pyarrow")


def can_read_archives() -> bool:
    """Whether archives can be read by this installation."""
    return not _missing()


def require_packages() -> None:
    """Raise what to install unless archives can be read by this installation."""
    if missing := _missing():
        raise ArchiveDependencyError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed, with which archives are "
            "read: install with: pip install 'tailrace[archive]'"
        )


def _missing() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]
