"""The project's structure: layers, import cycles, light imports, private names."""

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib

import pytest

from tests import structure

# What each package of this project may import from the others.
BELOW = {
    "launchpad": {"rl_replicator.processes"},
    "rl_replicator": set(),
    "environments": set(),
    "agents": {"launchpad", "rl_replicator", "environments"},
}
# Rooms that may import one more package: they run programs.
RUNNING_PROGRAMS = {"rl_replicator.experiments": {"launchpad"}, "rl_replicator.jobs": {"launchpad"}}
MOST_LOOSE_MODULES = 8
# The modules that implement the mathematics. A new file there needs tests that kill its mutants:
# list them in tests/mutants/targets.toml.
AREAS = (
    "agents/*/learner.py",
    "agents/*/losses.py",
    "agents/learning/*.py",
    "agents/replay/adder.py",
    "agents/replay/frames.py",
    "agents/replay/priorit*.py",
    "rl_replicator/checkpoints/*.py",
    "rl_replicator/collectives/*.py",
    "rl_replicator/layers/*.py",
    "rl_replicator/learners/*/learner.py",
    "rl_replicator/learners/*norm*.py",
    "rl_replicator/optimizers/*.py",
)
# A node of distributed programs; the learning itself is in agents/learning.
ELSEWHERE = {"agents/nodes/learner.py"}
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


@pytest.mark.parametrize("package", BELOW)
def test_imports_go_downward(package):
    """Imports of any kind: statements, importlib, `sys.modules`, tables of names."""

    def allowed(room):
        names = BELOW[package] | {package} | RUNNING_PROGRAMS.get(room, set())
        return tuple(f"{name}." for name in names)

    offenders = [
        f"{module.name} imports {name}"
        for module in structure.modules().values()
        if module.name.partition(".")[0] == package
        for name in sorted(
            structure.imported(module) | structure.foreign(module) & {"bench", "tests"}
        )
        if not f"{name}.".startswith(allowed(module.room))
    ]
    assert not offenders


def test_processes_stand_on_the_standard_library_alone():
    """Both `launchpad` and `rl_replicator.jobs` import `rl_replicator.processes`."""
    offenders = [
        f"{module.name} imports {name}"
        for module in structure.modules().values()
        if module.room == "rl_replicator.processes"
        for name in sorted(structure.imported(module) | structure.foreign(module))
        if name not in sys.stdlib_module_names | {"rl_replicator"}
        and not f"{name}.".startswith("rl_replicator.processes.")
    ]
    assert not offenders


@pytest.mark.parametrize("rooms", [True, False], ids=["rooms", "modules"])
def test_no_import_circles(rooms):
    """Imports in functions and under TYPE_CHECKING count too."""
    assert structure.circles(structure.arrows(rooms=rooms)) == []


@pytest.mark.parametrize("package", BELOW)
def test_few_loose_modules(package):
    assert len(structure.loose_modules(package)) <= MOST_LOOSE_MODULES


def test_public_definitions_are_documented():
    """But for methods, which may have their docstrings in a base class."""
    rules = ["--isolated", "--select", "D100,D101,D103", "--output-format", "concise"]
    command = [sys.executable, "-m", "ruff", "check", *rules, *BELOW]
    done = subprocess.run(command, cwd=structure.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_class_name_means_one_thing():
    found = structure.classes()
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


@pytest.mark.parametrize("package", [*BELOW, "rl_replicator.runs.metrics"])
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
    offenders = [
        module.name
        for module in structure.modules().values()
        if module.name.partition(".")[0] == package and "tensorflow" in structure.foreign(module)
    ]
    assert not offenders


def test_annotations_are_published():
    """Type checkers of other projects read annotations only of packages with this file."""
    assert [p for p in BELOW if not (structure.ROOT / p / "py.typed").exists()] == []


# Private names of other packages.


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


# Tests of the analysis itself.


def _module(name, source):
    return structure.Module(name, structure.ROOT / "a.py", ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import environments.suite",
        "from environments import suite",
        "from environments.suite import load",
        "def f():\n    import environments.suite as s",
        "if TYPE_CHECKING:\n    from environments import suite",
        "importlib.import_module('environments.suite')",
        "__import__('environments.suite')",
        "sys.modules.get('environments.suite')",
        "COMMANDS = {'list': 'environments.suite:load'}",
        "TABLE = {'load': 'suite'}\nimportlib.import_module(f'environments.{TABLE[name]}')",
    ],
)
def test_every_kind_of_import_is_seen(source):
    assert structure.imported(_module("rl_replicator.x", source)) == {"environments.suite"}


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}, "f": {"a"}}
    assert structure.circles(graph) == [["a", "b", "c"], ["d", "e"]]


@pytest.mark.parametrize("area", AREAS)
def test_every_module_of_the_mathematics_has_tests_for_its_mutants(area):
    names = tomllib.loads((structure.ROOT / "tests/mutants/targets.toml").read_text())
    listed = {f"{name.replace('.', '/')}.py" for name in names}
    paths = {str(path.relative_to(structure.ROOT)) for path in structure.ROOT.glob(area)}
    found = {path for path in paths - ELSEWHERE if not path.endswith("__init__.py")}
    assert found, "no such file: has it moved?"
    assert found - listed == set(), "expected them in tests/mutants/targets.toml"


def test_no_more_private_names_in_tests():
    """Tests use what users can use. The list shrinks only: a file that improved is corrected."""
    listed = tomllib.loads((structure.ROOT / "tests" / "private_reaches.toml").read_text())
    found = structure.private_reaches()
    assert {file: count for file, count in found.items() if count > listed.get(file, 0)} == {}
