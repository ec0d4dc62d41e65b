"""The mutants' TOML files only name modules, tests and source texts that exist."""

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
    """A fault whose text is missing would make `make mutants MUTANTS=--chosen` fail."""
    for entry in read("chosen.toml")["mutants"]:
        text = (ROOT / f"{entry['module'].replace('.', '/')}.py").read_text()
        assert text.count(entry["before"].strip("\n")) == 1, entry["name"]
