"""Films during a run."""

import os
import re
import sys

import pytest

from agents.runs.films import Films, film_at_the_end
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.processes import gpus
from rl_replicator.runs.run_directory import RunDirectory
from tests.waiting import wait_until

TOUCH = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"
LINGER = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
UNFINISHED = """
import os, pathlib, sys, time
from agents.policies import playing
pathlib.Path("pid").write_text(str(os.getpid()))  # Before the file that the test waits for.
with playing.film(pathlib.Path(sys.argv[1])):
    time.sleep(600)
"""
REFUSE = "import sys; sys.exit(print('rl-replicator: error: no pygame', file=sys.stderr) or 2)"
CRASH = "raise RuntimeError('a fault')"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    Checkpointer(tmp_path / "checkpoints").save(1, {"progress": JsonPart(dict, lambda _: None)})
    return RunDirectory(tmp_path)


def make(run, every, code=TOUCH, restored=0):
    """Films of a run that has just started, or was continued."""
    made = Films(run, every, lambda run_dir, out: [sys.executable, "-c", code, str(out)])
    made.tick(restored)
    return made


def films(run, *expected, made=None, steps=0):
    """Waits until the films are as expected; ticks at `steps` meanwhile.

    The random digits in the names of unfinished films are removed.
    """

    def are_there():
        if made is not None:
            made.tick(steps)
        names = (path.name for path in run.path.glob("films/*"))
        found = sorted(re.sub(r"-[0-9a-f]{8}\.partial", ".partial", name) for name in names)
        return found == [*expected]

    wait_until(are_there, 60, pause=0.02)


def test_a_film_every_so_many_steps_of_the_whole_run(run):
    one = make(run, 1000, restored=2300)
    one.tick(2990)
    films(run, "000003010.mp4", made=one, steps=3010)
    one.tick(3900)  # The next one is due at 4,000, not 1,000 steps after the last.
    films(run, "000003010.mp4", "000004000.mp4", made=one, steps=4000)
    one.close()
    films(run, "000003010.mp4", "000004000.mp4")


def test_no_film_without_a_checkpoint_or_without_the_option(tmp_path, run):
    for one in (make(run, None), make(RunDirectory(tmp_path / "other"), 10)):
        one.tick(10**9)
        one.close()
    assert not (run.path / "films").exists()


def test_the_end_of_a_run_ends_its_film_and_says_so(run, caplog):
    one = make(run, 1000, UNFINISHED)
    films(run, ".000001000.partial.mp4", made=one, steps=1000)
    one.tick(2000)  # One at a time.
    films(run, ".000001000.partial.mp4")
    one.close()
    assert not (run.path / "films").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((run.path / "pid").read_text()), 0)
    assert [record.getMessage() for record in caplog.records] == [
        "the film at 1,000 steps was not complete at the end of the run; it is left out"
    ]


def test_the_end_of_a_run_keeps_a_film_that_is_complete(run, caplog):
    one = make(run, 1000, LINGER)
    films(run, "000001000.mp4", made=one, steps=1000)
    one.close()
    films(run, "000001000.mp4")
    assert not caplog.records


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([sys.executable, "-c", REFUSE], "no pygame"),
        ([sys.executable, "-c", CRASH], "RuntimeError: a fault"),
        (["no-such-program"], "[Errno 2] No such file or directory: 'no-such-program'"),
    ],
)
def test_a_film_that_fails_is_one_warning_and_the_last(run, capfd, caplog, words, reason):
    film_at_the_end(run, lambda run_dir, out: words)
    starts = []
    one = Films(run, 10, lambda run_dir, out: starts.append(out) or words)
    one.tick(0)
    wait_until(lambda: one.tick(10) or len(caplog.records) == 2, 60, pause=0.02)
    one.tick(20)
    one.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"no video was made: {reason}",
        f"no further films are made: {reason}",
    ]
    assert len(starts) == 1 and capfd.readouterr().err == ""


def test_a_film_runs_no_module_of_the_working_directory(run, caplog):
    (run.path / "typing.py").write_text("raise AssertionError('it ran')")
    film_at_the_end(run)
    assert "no video was made: expected the directory of a run" in caplog.text


def test_a_film_hides_gpus_only_where_there_are_some(run, caplog, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    code = "import os, sys; sys.exit(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    for visible in ([], ["0"]):
        monkeypatch.setattr(gpus, "visible", lambda visible=visible: visible)
        film_at_the_end(run, lambda run_dir, out: [sys.executable, "-c", code])
    found = [record.getMessage() for record in caplog.records]
    assert found == ["no video was made: None", "no video was made: ''"]
