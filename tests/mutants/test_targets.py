"""The lists of the mutants name what there is: modules, their tests, faults."""

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def read(name):
    return tomllib.loads((HERE / name).read_text())


def test_what_is_listed_is_there():
    targets = read("targets.toml")
    paths = {f"{name.replace('.', '/')}.py" for name in targets}
    paths.update(test for tests in targets.values() for test in tests)
    assert {path for path in paths if not (ROOT / path).is_file()} == set()
    faults = {entry["module"] for entry in read("chosen.toml")["mutants"]}
    assert faults | set(read("survivors.toml")) <= set(targets)


def test_every_chosen_fault_has_its_place():
    """One that has none would end `make mutants MUTANTS=--chosen`."""
    for entry in read("chosen.toml")["mutants"]:
        text = (ROOT / f"{entry['module'].replace('.', '/')}.py").read_text()
        assert text.count(entry["before"].strip("\n")) == 1, entry["name"]
