"""Options that are removed from the words of a command."""

import pytest

from rl_replicator.cli import arguments


@pytest.mark.parametrize(
    ("words", "values", "others"),
    [
        ("a --b 1", [], "a --b 1"),
        ("a --run-dir x --b 1", ["x"], "a --b 1"),
        ("--run-dir x --run_dir=y --b --run-dir=z=1", ["x", "y", "z=1"], "--b"),
        ("--run-dir=x --run-dir y c", ["x", "y"], "c"),
        ("--run-dir --b", [None], "--b"),
        ("--b --run-dir", [None], "--b"),
        ("--run-dir= --run-dirs x", [""], "--run-dirs x"),
        ("--run-dir --run-dir x", [None, "x"], ""),
    ],
)
def test_an_option_is_removed_as_often_as_it_is_there(words, values, others):
    left = words.split()
    assert arguments.pop(left, "--run-dir") == values
    assert left == others.split()
