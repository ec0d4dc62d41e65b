"""The commands, paths and names that the documentation mentions."""

import ast
import fnmatch
import functools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import launchpad  # noqa: F401 - registers the paths of upstream
from tests import structure

ROOT = Path(__file__).parents[2]
_FOLDERS = (".", "docs", "docs/results", "launchpad", "bench/results")
DOCUMENTS = sorted(path for folder in _FOLDERS for path in (ROOT / folder).glob("*.md"))
_ALIASES = {"rr": "rl_replicator", "lp": "launchpad"}
# Files that runs, users or other programs write.
_WRITTEN = (
    "config.json",
    "metrics/*.csv",
    "results.csv",
    "trials.json",
    "lineage.json",
    "summary.csv",
    "evaluation.png",
    "evaluation.mp4",
    "events.csv",
    "films/*.mp4",
    "comparison.png",
    "play.mp4",
    "*/STEP.png",
    "train.py",
    "program.py",
    "package.py",
    "classify_image_graph_def.pb",
)
_FILE = re.compile(r"[\w./*-]+\.(py|md|toml|yaml|sh|json|csv|png|svg|gif|mp4|lock)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][\w.*-]*")


def lines_of_code(document: Path) -> list[str]:
    """Returns the lines of indented blocks, those continued by a backslash joined."""
    lines, is_fenced = [], False
    for line in document.read_text().splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced and line.startswith("    "):
            lines.append(line.strip())
    return "\n".join(lines).replace("\\\n", "").splitlines()


def inline_code(document: Path) -> list[str]:
    """Returns the texts between single backticks outside of blocks of code."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def blocks(document: Path, language: str) -> list[str]:
    """Returns the fenced blocks of a language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE
    )


def commands(document: Path, program: str) -> Iterator[list[str]]:
    """Yields the words of every command that runs a program, without the program's own words.

    Args:
      document: where to look: in indented blocks and between backticks.
      program: the command's first words, such as "python -m rl_replicator.jobs".
    """
    own = program.split()
    for text in [*lines_of_code(document), *inline_code(document)]:
        if program not in text:
            continue
        text = re.sub(r"\b(\w+)(\|\w+)+", r"\1", text)  # Of alternatives, a|b|c, the first.
        words = shlex.split(text, comments=True)
        for start in range(len(words)):
            if words[start : start + len(own)] == own:
                yield words[start + len(own) :]


@functools.cache
def files() -> frozenset[str]:
    """Returns the paths of all files of the repository, and their folders with a slash."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {path for path in done.stdout.splitlines() if (ROOT / path).exists()}
    folders = {f"{parent}/" for path in paths for parent in Path(path).parents}
    return frozenset(paths | folders)


def is_path(text: str) -> bool:
    """Returns whether a text between backticks is the path of a file."""
    return _FILE.fullmatch(text) is not None


def path_exists(document: Path, text: str) -> bool:
    """Returns whether a document's path exists: in the repository, or as the end of a path there.

    A path such as `losses.py` names a file in each of several folders.
    """
    if any(fnmatch.fnmatch(text, pattern) for pattern in _WRITTEN):
        return True
    folder = document.parent.relative_to(ROOT)
    return (
        text in files()
        or str(folder / text) in files()
        or any(path.endswith(f"/{text}") for path in files())
    )


def is_name(text: str) -> bool:
    """Returns whether a text between backticks is a dotted name of this project."""
    roots = "|".join([*_ALIASES, *structure.PACKAGES])
    return re.fullmatch(rf"({roots})(\.\w+)+([:(].*)?", text) is not None


def name_exists(text: str) -> bool:
    """Returns whether a dotted name is that of a module, something in it, or entry points."""
    name = re.split(r"\(", text.replace(":", "."))[0].rstrip(".")
    first, _, rest = name.partition(".")
    name = f"{_ALIASES.get(first, first)}.{rest}"
    if name in _entry_points() or name in _names():
        return True  # A group of entry points.
    parent, _, last = name.rpartition(".")
    if name.startswith("launchpad.") and hasattr(sys.modules.get(parent), last):
        return True  # One of the paths of upstream that `import launchpad` registers.
    module = name
    while module not in structure.modules():
        module = module.rpartition(".")[0]
    attribute = name[len(module) + 1 :].partition(".")[0]
    return not attribute or attribute in _bound(structure.modules()[module].tree)


def _bound(tree: ast.Module) -> set[str]:
    """Returns the names that a module defines or imports, including those of lazy imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


@functools.cache
def _names() -> frozenset[str]:
    modules = structure.modules().values()
    return frozenset().union(*(_bound(m.tree) for m in modules))


def registered_commands() -> Mapping[str, str]:
    """Returns the functions of the commands that are registered as entry points, by name."""
    return _entry_points()["rl_replicator.commands"]


def entry_points() -> str:
    """Returns the entry points of pyproject.toml in the format of an installed distribution."""
    lines = []
    for group, entries in _entry_points().items():
        lines += [f"[{group}]", *(f"{name} = {path}" for name, path in entries.items())]
    return "\n".join(lines) + "\n"


@functools.cache
def _entry_points() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


def flags(document: Path) -> set[str]:
    """Returns the options that a document mentions between backticks, such as `--agent.n-step`."""
    return {flag for text in inline_code(document) for flag in _FLAG.findall(text)}
