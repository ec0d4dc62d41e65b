"""The private names in `private_names.toml` all exist, and the project uses no others."""

import ast
import functools
import importlib
import inspect
import re
import tomllib

import pytest

from tests import structure

# Modules of other packages that are not part of their public interfaces.
PRIVATE_MODULES = ("tensorflow.python.", "keras.src.", "sonnet.src.", "ray._private.")
# Names that are documented or belong to Python itself.
KNOWN = {
    *("_asdict", "_fields", "_replace"),  # Of named tuples.
    *("_args_from_interpreter_flags", "_current_frames", "_register_atexit", "_run_exitfuncs"),
    *("_shutdown", "_lru_cache_wrapper", "_acquireLock", "_releaseLock"),
    "_ReadVariablesOp",  # An operation.
    *("_lower_using_switch_merge", "_read_only_resource_inputs"),  # Attributes of operations.
    # Texts that look like names.
    *("_output_shapes", "_own_classifier", "_block_", "_step_", "_", "_mask", "_self_"),
}


@functools.cache
def table():
    """Returns the rows (name, file, reason)."""
    files = tomllib.loads((structure.ROOT / "tests" / "private_names.toml").read_text())
    return [(name, file, why) for file, names in files.items() for name, why in names.items()]


@pytest.mark.parametrize(("name", "file", "reason"), table(), ids=lambda value: value)
def test_it_is_there(name, file, reason):
    owner, _, attribute = name.rpartition(".")
    found = _find(owner.removesuffix(".self"))
    if owner.endswith(".self"):
        sources = inspect.getmro(found)[:-1] if inspect.isclass(found) else (found,)
        is_there = any(re.search(rf"\b{attribute}\b", inspect.getsource(s)) for s in sources)
    else:
        is_there = hasattr(found, attribute)
    assert is_there, f"{name} is gone; {file} needs it: {reason}"
    assert attribute in (structure.ROOT / file).read_text(), f"{file} uses {name} no longer"


def _find(path):
    """Returns the module or class at a dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        owner, _, name = path.rpartition(".")
        return getattr(_find(owner), name)


def test_no_others_are_used():
    """Checks private modules, and underscored names that the project does not define itself."""
    listed = {(name.rpartition(".")[2], file) for name, file, _ in table()}
    modules = {(name, file) for name, file, _ in table()}
    defined, used, imported = set(), set(), set()
    for module in structure.modules().values():
        file = str(module.path.relative_to(structure.ROOT))
        for node in ast.walk(module.tree):
            defined |= _defined(node)
            used |= {(name, file) for name in _used(node)}
            imported |= {(name, file) for name in _imported(node)}
    unlisted = {
        (name, file) for name, file in used - listed if name not in defined and name not in KNOWN
    }
    assert unlisted == set(), "list these in tests/private_names.toml, or do without them"
    unlisted = {
        (name, file)
        for name, file in imported
        if name.startswith(PRIVATE_MODULES)
        and not any(known.startswith(name) and where == file for known, where in modules)
    }
    assert unlisted == set(), "list these in tests/private_names.toml, or do without them"


def _defined(node):
    """Returns the names that a node defines, without those that it only reads."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    if own and isinstance(node.ctx, ast.Store) and node.value.id in ("self", "cls"):
        return {node.attr}
    return set()


def _used(node):
    name = node.attr if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        name = node.value
    return {name} if name and re.match(r"_[a-z]|_[A-Z]", name) else set()


def _imported(node):
    if isinstance(node, ast.ImportFrom):
        return {f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()
