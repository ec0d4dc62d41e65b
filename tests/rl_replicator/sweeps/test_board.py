"""The table of a sweep."""

import pytest

from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.score import Score
from rl_replicator.sweeps import board
from rl_replicator.sweeps.trial import SweepTrial, TrialState


def test_values_have_as_many_digits_as_a_person_compares(tmp_path):
    values = {"rate": "0.00063805612345", "size": "2000000", "layers": "256 0.5", "kind": "a.b"}
    row = board.text([SweepTrial(0, values, tmp_path, (1,))], 1).splitlines()[-1]
    assert row.split() == ["0", "0.000638056", "2000000", "256", "0.5", "a.b", "running", "0"]


@pytest.mark.parametrize(
    ("is_highest_best", "figures", "expected"),
    [(False, [3.0, None, 1.0], [2, 0, 1]), (True, [-3.0, None, -1.0], [2, 0, 1])],
)
def test_done_trials_whose_runs_were_deleted_come_last(
    tmp_path, is_highest_best, figures, expected
):
    trials = []
    for number, figure in enumerate(figures):
        trial = SweepTrial(number, {}, tmp_path / str(number), (1,), TrialState.DONE)
        trials.append(trial)
        if figure is not None:
            run = RunDirectory(trial.run_dir(1))
            with run.opened("net", {}):
                run.describe("net", {}, {}, Score("evaluation", "y", is_highest_best).plain())
            writer = MetricWriter(run.path, "steps")
            writer.write("evaluation", 10, {"y": figure})
            writer.close()
    assert [trial.number for trial in board.ranked(trials)] == expected
