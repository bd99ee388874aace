"""Finds modules of the package that no program loads, and fails if there are any; `make check` runs it.

A module is used if an entry point reaches it. Entry points are the scripts in pyproject.toml, `__main__`, modules that
can be run by themselves, top-level packages, which others find by name, and everything under `testing`, the kit for
tests and simulations. From there the check follows imports, and strings that are module names, as in tables of modules
to load. A package that calls `iter_modules` loads everything in it. Imports in tests do not count.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]
#: Packages whose modules only tests and simulations need.
KITS = ("tailrace.testing",)


def main() -> int:
    modules = find_modules(ROOT / "src")
    unused = unused_modules(modules, entry_points(ROOT / "pyproject.toml"), KITS)
    for name in unused:
        print(f"{modules[name].relative_to(ROOT)} is unused: no program imports {name}.")
    if unused:
        print("Delete these modules and their tests, or move what tests need to tests/support.")
    else:
        print(f"{len(modules)} modules, all used")
    return 1 if unused else 0


def find_modules(source: Path) -> dict[str, Path]:
    """Return every module below a source folder by its dotted name."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def entry_points(pyproject: Path) -> list[str]:
    """Return the modules of the commands that the package installs."""
    scripts: Mapping[str, str] = tomllib.loads(pyproject.read_text())["project"].get("scripts", {})
    return [target.partition(":")[0] for target in scripts.values()]


def unused_modules(modules: Mapping[str, Path], entries: Iterable[str], kits: Iterable[str]) -> list[str]:
    """Return the modules that no entry point reaches; not packages, as Python loads each along with its modules."""
    trees = {name: ast.parse(path.read_bytes(), str(path)) for name, path in modules.items()}
    starts = tuple(f"{kit}." for kit in kits)
    waiting = [
        *entries,
        *(name for name in modules if "." not in name or name.endswith(".__main__") or name.startswith(starts)),
        *(name for name, tree in trees.items() if _can_be_run(tree)),
    ]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in modules and name not in reached:
            reached.add(name)
            waiting.append(name.rpartition(".")[0])
            waiting.extend(_named_in(name, trees[name], is_package=modules[name].name == "__init__.py"))
            if _loads_all(trees[name]):
                waiting.extend(other for other in modules if other.startswith(f"{name}."))
    return [name for name, path in modules.items() if name not in reached and path.name != "__init__.py"]


def _named_in(module: str, tree: ast.Module, *, is_package: bool) -> Iterator[str]:
    """Yield imported names and strings that may be module names, except logger names, which equal module names."""
    loggers = {argument for node in ast.walk(tree) if _is_logger(node) for argument in node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = [node.module] if node.module else []
            if node.level:
                above = module.split(".")
                origin = above[: len(above) - node.level + is_package] + origin
            yield ".".join(origin)
            yield from (".".join([*origin, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in loggers:
            yield node.value


def _loads_all(tree: ast.Module) -> bool:
    """Return whether a package loads everything in it."""
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) == "iter_modules" for node in ast.walk(tree))


def _is_logger(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger"


def _can_be_run(tree: ast.Module) -> bool:
    """Return whether a module has a part that runs only when the module is started by itself."""
    return any(isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" for node in tree.body)


if __name__ == "__main__":
    sys.exit(main())
