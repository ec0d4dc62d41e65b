"""`rl-replicator zoo`: policies of runs, exported, measured and played."""

import errno
import json
import os
import pathlib
import re
import shutil

import imageio.v3 as iio
import pytest

from agents import d4pg
from agents.cli import play, zoo
from rl_replicator.errors import DiskError, UsageError
from tests.agents.policies import test_export


def test_a_policy_is_exported_measured_and_played(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = test_export._make_run(tmp_path / "run", d4pg.command, None)
    assert (
        zoo.run([str(run), "--out", "zoo", "--episodes", "2", "--seed", "3", "--license", "MIT"])
        == 0
    )
    (line,) = _lines(capsys)
    name, measured = line.split(": return ")
    table = (tmp_path / "zoo" / "README.md").read_text()
    assert (
        f"| [{name}]({name}/README.md) | {test_export.ENV} | d4pg | 1,000 | {measured} | "
        f"[frames]({name}/episode.jpg) |" in table
    )
    assert iio.imread(tmp_path / "zoo" / name / "episode.jpg").shape == (120, 6 * 160, 3)
    assert [path.name for path in (tmp_path / "zoo").glob("**/model.py")] == ["model.py"]
    card = (tmp_path / "zoo" / name / "README.md").read_text()
    assert "8.25 (min 7, max 9, 5 episodes)" in card and "| licence | MIT |" in card
    # The run and what was exported from it play the same episodes.
    returns = []
    for path in (run, tmp_path / "zoo" / name):
        words = [str(path), "--seed", "3", "--episodes", "2", "--out", "film.gif"]
        assert play.run(words) == 0
        returns.append([float(x) for x in re.findall(r"return (\S+) ", "\n".join(_lines(capsys)))])
    assert returns[0] == pytest.approx(returns[1], abs=0.11) and len(returns[0]) == 2
    low, high = re.search(r"\((\S+) to (\S+)\)", measured).groups()
    assert [float(low), float(high)] == pytest.approx(sorted(returns[1]), abs=0.11)


def test_episodes_are_cut_off_where_the_run_did(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = test_export._make_run(tmp_path / "run", d4pg.command, None)
    config = json.loads((run / "config.json").read_text())
    config["options"]["evaluation"] = {"max_episode_steps": 2}
    (run / "config.json").write_text(json.dumps(config))
    assert d4pg.command.evaluate(run, episodes=1, seed=3) == 0
    assert play.run([str(run), "--seed", "3", "--out", "film.gif"]) == 0
    assert zoo.run([str(run), "--out", "zoo", "--episodes", "1", "--seed", "3"]) == 0
    evaluated, played, *_, measured = re.findall(r"return (\S+) ", "\n".join(_lines(capsys)))
    assert evaluated == played == measured


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zoo, "_named", lambda run_dirs: {"name": run_dirs[0]})
    monkeypatch.setattr(zoo, "_added", fail)
    with pytest.raises(DiskError, match="--out: cannot write .*No space left on device"):
        zoo.run(["run", "--out", str(tmp_path / "zoo")])
    assert [*tmp_path.iterdir()] == []


def test_a_name_that_cannot_be_looked_up_is_refused_in_one_line():
    with pytest.raises(UsageError, match="--out: cannot write aaa.*File name too long"):
        zoo.run(["run", "--out", "a" * 300])


def test_what_fails_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [str(tmp_path / name) for name in ("first", "second")]
    test_export._make_run(tmp_path / "first", d4pg.command, None)
    shutil.copytree(*runs)
    made = []
    monkeypatch.setattr(zoo, "_added", lambda *args: made.append(args))
    with pytest.raises(UsageError, match=r"one run for each task and agent, got .*first and .*sec"):
        zoo.run([*runs, "--out", "zoo"])
    assert not made
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    shutil.copytree("second", "other")
    shutil.rmtree("other/checkpoints")
    config = json.loads(pathlib.Path("other/config.json").read_text())
    config["identity"]["env"] = "environments.fakes:target"
    pathlib.Path("other/config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="checkpoint"):
        zoo.run([runs[0], "other", "--out", "zoo", "--episodes", "1"])
    assert not any("zoo" in path.name for path in tmp_path.iterdir())


def _lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if "return" in line]


def test_bad_input(tmp_path):
    with pytest.raises(UsageError, match="expected directories of runs"):
        zoo.run(["--out", str(tmp_path / "zoo")])
    with pytest.raises(UsageError, match="expected a new folder"):
        zoo.run(["run", "--out", str(tmp_path)])
