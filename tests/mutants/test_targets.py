"""The lists of the mutants name what there is: modules, their tests, faults."""

import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# What the mathematics depends on. A new file there needs tests that kill its mutants.
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
    "rl_replicator/learners/*/losses.py",
    "rl_replicator/learners/*/*norm*.py",
    "rl_replicator/optimizers/*.py",
)
# A node of programs; what it learns with is in agents/learning.
ELSEWHERE = {"agents/nodes/learner.py"}


def read(name):
    return tomllib.loads((HERE / name).read_text())


def modules(area):
    """Paths from the root, without files that only import others."""
    paths = {str(path.relative_to(ROOT)) for path in ROOT.glob(area)}
    return {path for path in paths - ELSEWHERE if not path.endswith("__init__.py")}


@pytest.mark.parametrize("area", AREAS)
def test_every_module_of_the_mathematics_is_listed(area):
    listed = {f"{name.replace('.', '/')}.py" for name in read("targets.toml")}
    assert modules(area), "no such file: has it moved?"
    assert modules(area) - listed == set()


def test_what_is_listed_is_there():
    targets = read("targets.toml")
    paths = {f"{name.replace('.', '/')}.py" for name in targets}
    paths.update(test for tests in targets.values() for test in tests)
    assert {path for path in paths if not (ROOT / path).is_file()} == set()
    faults = {entry["module"] for entry in read("chosen.toml")["mutants"]}
    assert faults | set(read("survivors.toml")) <= set(targets)
