"""The table of a sweep."""

from rl_replicator.sweeps import board
from rl_replicator.sweeps.trial import SweepTrial


def test_values_have_as_many_digits_as_a_person_compares(tmp_path):
    values = {"rate": "0.00063805612345", "size": "2000000", "layers": "256 0.5", "kind": "a.b"}
    row = board.text([SweepTrial(0, values, tmp_path, (1,))], 1).splitlines()[-1]
    assert row.split() == ["0", "0.000638056", "2000000", "256", "0.5", "a.b", "running", "0"]
