"""The names of what is open, as a tree: renaming a directory is one step, however many files are open below it.

Owns which name each open file and directory has now. It must not know descriptors or touch the disk; whoever uses
it holds a lock. A name lives as long as somebody has what it names, or something below it, open.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

F = TypeVar("F")


class OpenName(Generic[F]):
    """A file or directory that is open, or above one that is."""

    __slots__ = ("__weakref__", "_children", "_files", "_name", "_parent", "is_removed")

    def __init__(self, parent: OpenName[F] | None, name: str) -> None:
        self._parent = parent
        self._name = name
        #: Weak, for those below hold those above. A name that ended unseen stays until its file is removed or renamed.
        self._children: dict[str, weakref.ref[OpenName[F]]] | None = None
        self._files: list[weakref.ref[F]] | None = None
        self.is_removed = False

    @property
    def path(self) -> str:
        """The whole name by now; of what was removed, the last one."""
        names = []
        at: OpenName[F] | None = self
        while at is not None:
            names.append(at._name)
            at = at._parent
        return "/".join(reversed(names))

    def add(self, file: F) -> None:
        """Somebody opened the file of this name."""
        self._files = [known for known in self._files or () if known() is not None]
        self._files.append(weakref.ref(file))

    def files_below(self) -> Iterator[F]:
        """Every open file of this name or below it."""
        for reference in self._files or ():
            if (file := reference()) is not None:
                yield file
        for child_reference in list((self._children or {}).values()):
            if (child := child_reference()) is not None:
                yield from child.files_below()

    def child(self, name: str) -> OpenName[F] | None:
        """The name below this one, if anything there is open."""
        reference = self._children.get(name) if self._children else None
        return None if reference is None else reference()

    def make_child(self, name: str) -> OpenName[F]:
        found = self.child(name)
        if found is None:
            found = OpenName(self, name)
            found._attach()
        return found

    def move(self, parent: OpenName[F], name: str) -> None:
        """Be at another place from now on, with all that is below."""
        self._detach()
        self._parent, self._name = parent, name
        self._attach()

    def remove(self) -> None:
        """Give the name up, and those below: whatever is opened under them from now on is something else."""
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
    """All that is open, from the root and from the working directory on."""

    def __init__(self) -> None:
        self._absolute: OpenName[F] = OpenName(None, "")
        self._relative: OpenName[F] = OpenName(None, ".")

    def find(self, path: str) -> OpenName[F] | None:
        """What is open under a path, or None."""
        at: OpenName[F] | None = self._root(path)
        for name in _parts(path):
            if at is None:
                return None
            at = at.child(name)
        return at

    def make(self, path: str) -> OpenName[F]:
        """The name that a path leads to, from now on known as open while somebody holds it."""
        at = self._root(path)
        for name in _parts(path):
            at = at.make_child(name)
        return at

    def rename(self, old: str, new: str) -> None:
        """The file or directory of one path has the other now; what had that is gone."""
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
