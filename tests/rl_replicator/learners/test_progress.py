"""What the line says of the pace."""

import types

from rl_replicator.learners import progress
from rl_replicator.runs.run_directory import RunDirectory


def test_an_evaluation_does_not_change_the_pace(tmp_path, monkeypatch, capfd):
    now = 100.0
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now))
    reports = progress.Reports(RunDirectory(tmp_path), 100, 2, 8, None)
    reports.tick(0, False)
    assert "0/100 steps | ETA - |" in capfd.readouterr().err
    now += 5
    reports.tick(40, False)
    now += 30
    reports.add_evaluation(20, {"accuracy": 0.5}, "accuracy")
    reports._line._next_line = 0.0
    reports.tick(40, False)
    line = capfd.readouterr().err
    assert "20/100 steps | ETA 0:20 | accuracy 0.5 @20 | 4 steps/s | 64 examples/s | " in line
    now += 5
    reports.tick(80, False)
    assert [pace.seconds for pace in reports._paces][-1] == 110.0
    reports.close()
