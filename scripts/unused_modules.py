"""Finds modules of the package that no running program loads, and fails naming them; `make check` runs it.

A module is used if an entry point reaches it. Entry points are the scripts in pyproject.toml, `__main__`, modules that
can be run by themselves, top-level packages, which others find by their name, and everything under `testing`, the kit
for tests and simulations. From there it follows imports and strings that are a module's name, as tables of modules to
load have them. A package that calls `iter_modules` loads all that is in it. What tests import does not count.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]
#: Folders whose modules only tests and simulations need.
KITS = ("tailrace.testing",)


def main() -> int:
    modules = find_modules(ROOT / "src")
    unused = unused_modules(modules, entry_points(ROOT / "pyproject.toml"), KITS)
    for name in unused:
        print(f"{modules[name].relative_to(ROOT)} is unused: no program reaches {name} by its imports.")
    if unused:
        print("Delete them with their tests, or move to tests/support what tests need.")
    else:
        print(f"{len(modules)} modules, all of them used")
    return 1 if unused else 0


def find_modules(source: Path) -> dict[str, Path]:
    """Every module below a source folder by its dotted name."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def entry_points(pyproject: Path) -> list[str]:
    """The modules behind the commands that an installation brings."""
    scripts: Mapping[str, str] = tomllib.loads(pyproject.read_text())["project"].get("scripts", {})
    return [target.partition(":")[0] for target in scripts.values()]


def unused_modules(modules: Mapping[str, Path], entries: Iterable[str], kits: Iterable[str]) -> list[str]:
    """The modules that no entry point reaches; packages are left out, as each is loaded with what is in it."""
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
    """The names in imports, and strings that may be names, but for those of loggers, which are called like modules."""
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
    """Whether a package loads whatever is in it."""
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) == "iter_modules" for node in ast.walk(tree))


def _is_logger(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger"


def _can_be_run(tree: ast.Module) -> bool:
    """Whether a module has a part that runs only when it is started by itself."""
    return any(isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" for node in tree.body)


if __name__ == "__main__":
    sys.exit(main())
