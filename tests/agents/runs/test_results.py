"""The time that restarts have cost a run."""

import pytest

from agents.runs import results
from rl_replicator.runs.run_directory import RunDirectory


def write(run_dir, rows):
    """Writes rows of (seconds, learner steps)."""
    lines = ["environment_steps,wall_time,learner_steps"]
    lines += [f"{step},{seconds},{float(step)}" for seconds, step in rows]
    (run_dir / "metrics").mkdir()
    (run_dir / "metrics" / "learner.csv").write_text("\n".join([*lines, ""]))


def undisturbed(seconds):
    return [(float(second), 100 * second) for second in range(seconds)]


def test_an_undisturbed_run_loses_nothing(tmp_path):
    write(tmp_path, undisturbed(60))
    assert results.lost_seconds(tmp_path, None) == (0.0, pytest.approx(59.0))
    # The wait for the next row is no loss.
    assert results.lost_seconds(tmp_path, 60.9) == (0.0, pytest.approx(59.0))


def test_the_time_of_a_restart_and_of_repeated_steps_is_lost(tmp_path, capsys):
    """Down from 30 s to 40 s and back at the steps of second 25, it catches up after 45 s."""
    after = [(second + 10.0, 100 * (second - 5)) for second in range(30, 80)]
    write(tmp_path, undisturbed(31) + after)
    lost, trained = results.lost_seconds(tmp_path, None)
    assert lost == pytest.approx(15.0, abs=0.1) and trained == pytest.approx(89.0)
    results.print_goodput(RunDirectory(tmp_path), None)
    told = f"goodput {74 / 89:.1%}: the learner made no progress for 15 s of 1:29\n"
    assert capsys.readouterr().out == told


def test_a_wait_for_another_node_is_lost_and_a_slow_second_is_not(tmp_path):
    """The second from 30 s on makes 60 steps; from 31 s to 41 s there are none."""
    after = [(second + 41.0, 3060 + 100 * second) for second in range(1, 40)]
    write(tmp_path, [*undisturbed(31), (31.0, 3060), *after])
    assert results.lost_seconds(tmp_path, None)[0] == pytest.approx(10.0)


@pytest.mark.parametrize("trained", [2, 60])
def test_a_learner_that_gets_nothing_until_the_run_is_stopped_loses_that_time(tmp_path, trained):
    write(tmp_path, undisturbed(trained))
    lost, total = results.lost_seconds(tmp_path, trained + 599.0)
    assert lost == pytest.approx(600.0) and total == pytest.approx(trained + 599.0)


@pytest.mark.parametrize("rows", [[], undisturbed(1), undisturbed(2), [(0.0, 5), (9.0, 5)]])
def test_there_is_no_line_for_a_run_that_has_hardly_trained(tmp_path, capsys, rows):
    write(tmp_path, rows)
    results.print_goodput(RunDirectory(tmp_path), 2.0)
    assert capsys.readouterr().out == ""
