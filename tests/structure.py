"""Analyzes the project's modules and their imports; `python -m tests.structure` prints its size.

A module counts as importing another if it has an import statement for it anywhere (also in a
function or under `TYPE_CHECKING`), or if it contains the other's name in a string, which could be
passed to importlib or looked up in `sys.modules`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("agents", "environments", "launchpad", "rl_replicator")
_ENTRY_POINTS = {"__init__", "__main__"}
# Modules from which `train d4pg` begins.
_START = ("rl_replicator.cli.main", "rl_replicator.cli.train", "agents.d4pg")
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}
_OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields"}  # Documented, in spite of their names.


@dataclasses.dataclass(frozen=True)
class Module:
    """One file of a package.

    Attributes:
      name: dotted name; for an `__init__.py`, that of its package.
      path: path of the file.
      tree: its syntax tree.
    """

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The direct child of the root package that is or contains this module."""
        return ".".join(self.name.split(".")[:2])


@functools.cache
def modules() -> dict[str, Module]:
    """Returns all modules by name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            name = name.removesuffix(".__init__")
            found[name] = Module(name, path, ast.parse(path.read_text()))
    return found


def imported(module: Module) -> set[str]:
    """Returns the project's modules that a module imports in any way."""
    found = set(_statements(module)) | set(_strings(module))
    return {_longest(name) for name in found if _longest(name)} - {module.name}


def foreign(module: Module) -> set[str]:
    """Returns the top-level packages that a module's import statements name."""
    return {name.partition(".")[0] for name in _statements(module)}


def _statements(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _strings(module: Module) -> Iterator[str]:
    """Yields names in strings: whole ones, and those an f-string builds from a table's entries."""
    constants = [
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    prefixes = {
        node.values[0].value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.JoinedStr)
        and isinstance(node.values[0], ast.Constant)
        and re.fullmatch(rf"({'|'.join(PACKAGES)})\.([\w.]+\.)?", node.values[0].value)
    }
    for text in constants:
        # The name of a package alone may be that of a logger, a program or a group of entry points.
        name = re.fullmatch(r"[\w.:]+", text) and _longest(text.replace(":", "."))
        if name and "." in name:
            yield name
        for prefix in prefixes:
            if re.fullmatch(r"\w[\w.]*", text) and f"{prefix}{text}" in modules():
                yield f"{prefix}{text}"


def _longest(name: str) -> str | None:
    """Returns the module that contains a dotted name; None if it is outside the project."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or None


def arrows(rooms: bool) -> dict[str, set[str]]:
    """Returns the import graph: the names that each name imports.

    Args:
      rooms: whether the nodes are rooms (see `Module.room`), without the root packages' `__init__`;
        otherwise they are modules.
    """
    found: dict[str, set[str]] = {}
    for module in modules().values():
        source = module.room if rooms else module.name
        if rooms and source in PACKAGES:
            continue
        targets = {modules()[name].room if rooms else name for name in imported(module)}
        targets -= {source, *(PACKAGES if rooms else ())}
        found.setdefault(source, set()).update(targets)
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Returns the groups of two or more nodes that all reach one another, that is, the cycles."""
    reached = {node: _reach(graph, node) for node in graph}
    groups = {tuple(sorted(b for b in reached[a] if a in reached.get(b, ()))) for a in graph}
    return sorted([*group] for group in groups if len(group) > 1)


def _reach(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    reached, pending = set(), [start]
    while pending:
        for node in graph.get(pending.pop(), ()):
            if node not in reached:
                reached.add(node)
                pending.append(node)
    return reached


def loose_modules(package: str) -> list[str]:
    """Returns the modules that lie directly in a package's root."""
    return sorted(p.stem for p in (ROOT / package).glob("*.py") if p.stem not in _ENTRY_POINTS)


def classes() -> dict[str, list[str]]:
    """Returns the modules that define a public class, by the name of the class."""
    found: dict[str, list[str]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module.name)
    return found


def _last_name(node: ast.expr) -> str:
    """Returns the last part of `a.b`, `a.b(...)` or `a.b[...]`."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def code_lines(path: Path) -> int:
    """Returns the number of a file's lines without docstrings, comments and blank lines."""
    source = path.read_text()
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                held -= set(range(first.lineno, first.end_lineno + 1))
    return len(held)


def reached() -> list[Path]:
    """Returns the files that `train d4pg` reaches by import statements, those in functions too."""
    graph = {
        name: {*filter(None, map(_longest, _statements(module))), *_parents(name)}
        for name, module in modules().items()
    }
    names = set(_START).union(*(_reach(graph, name) for name in _START))
    return [modules()[name].path for name in sorted(names)]


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def private_reaches() -> Counter[str]:
    """Returns how often each test file uses a private name of what it tests.

    Such names are attributes of other objects than `self`, names in imports, and strings passed to
    `setattr`, if the file does not define them itself.
    """
    found: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text())
        own = bound_names(tree)
        count = sum(
            bool(re.match(r"_[A-Za-z]", name)) and name not in own | _OF_NAMED_TUPLES
            for node in ast.walk(tree)
            for name in _private_candidates(node)
        )
        if count:
            found[str(path.relative_to(ROOT))] = count
    return found


def bound_names(tree: ast.Module) -> set[str]:
    """Returns the names of the functions, classes, variables and attributes that a file defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def _private_candidates(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            yield node.attr
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and _last_name(node.func) in ("setattr", "delattr"):
        yield from (
            str(argument.value).rpartition(".")[2]
            for argument in node.args
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        )


def report() -> Iterator[str]:
    """Yields the amounts that somebody who reads everything has to read."""
    for folders in (PACKAGES, ("bench",), ("tests",)):
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
        total = sum(map(code_lines, paths))
        yield f"lines of code              {total:6,} in {len(paths)} files of {', '.join(folders)}"
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    words = sum(len(path.read_text().split()) for path in pages)
    yield f"words                      {words:6,} in {len(pages)} pages"
    paths = reached()
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    yield f"`train d4pg` reaches       {len(paths)} files, {lines:,} lines"


if __name__ == "__main__":
    print("\n".join(report()))
    for group in circles(arrows(rooms=True)) + circles(arrows(rooms=False)):
        print("circle:", *group)
