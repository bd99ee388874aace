"""The names of open files as a tree: renaming a directory is one step, however many files are open below it.

Owns the current name of each open file and directory. It knows no descriptors and does not touch the disk; callers hold
a lock. A name exists while something with that name, or below it, is open.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

F = TypeVar("F")


class OpenName(Generic[F]):
    """A file or directory that is open, or has something open below it."""

    __slots__ = ("__weakref__", "_children", "_files", "_name", "_parent", "is_removed")

    def __init__(self, parent: OpenName[F] | None, name: str) -> None:
        self._parent = parent
        self._name = name
        #: Weak, because children reference their parents. A dead entry stays until its file is removed or renamed.
        self._children: dict[str, weakref.ref[OpenName[F]]] | None = None
        self._files: list[weakref.ref[F]] | None = None
        self.is_removed = False

    @property
    def path(self) -> str:
        """The current full name; for a removed file, its last one."""
        names = []
        at: OpenName[F] | None = self
        while at is not None:
            names.append(at._name)
            at = at._parent
        return "/".join(reversed(names))

    def add(self, file: F) -> None:
        """Register an open file with this name."""
        self._files = [known for known in self._files or () if known() is not None]
        self._files.append(weakref.ref(file))

    def files_below(self) -> Iterator[F]:
        """Every open file with this name or below it."""
        for reference in self._files or ():
            if (file := reference()) is not None:
                yield file
        for child_reference in list((self._children or {}).values()):
            if (child := child_reference()) is not None:
                yield from child.files_below()

    def child(self, name: str) -> OpenName[F] | None:
        """The child with this name, if anything there is open."""
        reference = self._children.get(name) if self._children else None
        return None if reference is None else reference()

    def make_child(self, name: str) -> OpenName[F]:
        found = self.child(name)
        if found is None:
            found = OpenName(self, name)
            found._attach()
        return found

    def move(self, parent: OpenName[F], name: str) -> None:
        """Move to another place, with everything below."""
        self._detach()
        self._parent, self._name = parent, name
        self._attach()

    def remove(self) -> None:
        """Remove this name and those below: whatever is opened under them later is something else."""
        self._detach()
        self._mark_removed()

    def _mark_removed(self) -> None:
        self.is_removed = True
        for reference in list((self._children or {}).values()):
            if (child := reference()) is not None:
                child._mark_removed()

    def _attach(self) -> None:
        assert self._parent is not None
        if self._parent._children is None:
            self._parent._children = {}
        self._parent._children[self._name] = weakref.ref(self)

    def _detach(self) -> None:
        if self._parent is not None and self._parent.child(self._name) is self:
            assert self._parent._children is not None
            del self._parent._children[self._name]


class OpenNames(Generic[F]):
    """All open names, starting from the root and from the working directory."""

    def __init__(self) -> None:
        self._absolute: OpenName[F] = OpenName(None, "")
        self._relative: OpenName[F] = OpenName(None, ".")

    def find(self, path: str) -> OpenName[F] | None:
        """The open name for a path, or None."""
        at: OpenName[F] | None = self._root(path)
        for name in _parts(path):
            if at is None:
                return None
            at = at.child(name)
        return at

    def make(self, path: str) -> OpenName[F]:
        """The name for a path, registered as open while it is referenced."""
        at = self._root(path)
        for name in _parts(path):
            at = at.make_child(name)
        return at

    def rename(self, old: str, new: str) -> None:
        """Rename a path; whatever had the new name is removed."""
        moved, replaced = self.find(old), self.find(new)
        if moved is replaced:
            return
        if replaced is not None:
            replaced.remove()
        if moved is not None:
            *above, name = _parts(new)
            parent = self._root(new)
            for part in above:
                parent = parent.make_child(part)
            moved.move(parent, name)

    def _root(self, path: str) -> OpenName[F]:
        return self._absolute if path.startswith("/") else self._relative


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
