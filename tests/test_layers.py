"""Imports go downward only, and importing a package loads none of the heavy libraries."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a package of this project may import of the others.
BELOW = {
    "launchpad": set(),
    "rl_replicator": set(),
    "environments": set(),
    "agents": {"launchpad", "rl_replicator", "environments"},
}


def _imported(path):
    """Top-level names that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", BELOW)
def test_imports_go_downward(package):
    forbidden = set(BELOW) - BELOW[package] - {package} | {"bench", "tests"}
    offenders = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in _imported(path)
        if name in forbidden
    }
    assert not offenders


def _named_in_texts(path):
    """Packages of this project in strings that could be given to importlib or `sys.modules`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.fullmatch(rf"({'|'.join(BELOW)})([.:][\w.:]+)?", node.value)
            if found:
                yield found[1]


@pytest.mark.parametrize("package", BELOW)
def test_no_detour_upward_through_importlib(package):
    offenders = {
        f"{path.relative_to(ROOT)} names {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in _named_in_texts(path)
        if name not in BELOW[package] | {package}
    }
    assert not offenders


@pytest.mark.parametrize("package", BELOW)
def test_importing_does_no_work(package):
    code = f"""
import sys, {package}
heavy = ("tensorflow", "sonnet", "reverb", "ray", "jax", "dm_control", "matplotlib")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("package", ["launchpad", "environments"])
def test_these_never_import_tensorflow(package):
    offenders = {
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*.py")
        if "tensorflow" in set(_imported(path))
    }
    assert not offenders
