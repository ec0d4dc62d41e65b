"""Films during a run."""

import re
import sys
import tempfile
import time

import pytest

from agents.runs.films import Films, film_at_the_end, video_command
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import ConfigError
from rl_replicator.runs.run_directory import RunDirectory

TOUCH = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"
WAIT = "import time; time.sleep(600)"
LINGER = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
UNFINISHED = """
import pathlib, sys, time
from agents.policies import video_file
with video_file.film(pathlib.Path(sys.argv[1])):
    time.sleep(600)
"""


@pytest.fixture
def run(tmp_path):
    Checkpointer(tmp_path / "checkpoints").save(1, {"progress": JsonPart(dict, lambda _: None)})
    return RunDirectory(tmp_path)


def make(run, every, code=TOUCH, restored=0):
    """Films of a run that has just started, or was continued."""
    made = Films(run, every, lambda run_dir, output: [sys.executable, "-c", code, str(output)])
    made.tick(restored)
    return made


def films(run, expected):
    """The films, once they are as expected, or after a timeout.

    The random digits in the names of unfinished films are removed.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        names = (path.name for path in run.path.glob("films/*"))
        found = sorted(re.sub(r"-[0-9a-f]{8}\.partial", ".partial", name) for name in names)
        if found == expected:
            break
        time.sleep(0.02)
    return found


def test_a_film_every_so_many_steps(run):
    one = make(run, 1000)
    one.tick(999)
    assert one._process is None
    one.tick(1040)
    assert films(run, ["000001040.mp4"]) == ["000001040.mp4"]
    one._process.wait()
    one.tick(1900)  # The next one is due at 2,000, not 1,000 steps after the last.
    one.tick(2000)
    expected = ["000001040.mp4", "000002000.mp4"]
    assert films(run, expected) == expected
    one.close()


def test_a_continued_run_is_filmed_at_the_same_steps(run):
    one = make(run, 1000, restored=2300)
    assert one._process is None
    one.tick(2990)
    assert one._process is None
    one.tick(3010)
    assert films(run, ["000003010.mp4"]) == ["000003010.mp4"]
    one.close()


def test_one_film_at_a_time_and_none_outlives_the_run(run):
    one = make(run, 1000, WAIT)
    one.tick(1000)
    process = one._process
    one.tick(2000)
    assert one._process is process
    one.close()
    assert process.returncode is not None


def test_the_end_of_a_run_leaves_no_unfinished_film_and_says_so(run, caplog):
    one = make(run, 1000, UNFINISHED)
    one.tick(1000)
    assert films(run, [".000001000.partial.mp4"]) == [".000001000.partial.mp4"]
    one.close()
    assert not (run.path / "films").exists()
    assert [record.getMessage() for record in caplog.records] == [
        "the film at 1,000 steps was not complete at the end of the run; it is left out"
    ]


def test_the_end_of_a_run_keeps_its_films(run, caplog):
    one = make(run, 1000, LINGER)
    one.tick(1000)
    assert films(run, ["000001000.mp4"]) == ["000001000.mp4"]
    one.close()
    assert films(run, ["000001000.mp4"]) == ["000001000.mp4"]
    assert not caplog.records


def test_no_film_without_a_checkpoint_or_without_the_option(tmp_path, run):
    none = make(run, None)
    none.tick(10**9)
    early = make(RunDirectory(tmp_path / "other"), 10)
    early.tick(100)
    assert none._process is None and early._process is None


def test_the_option_and_the_command(tmp_path):
    with pytest.raises(ConfigError, match="--video-every: expected at least 1, got 0"):
        AgentOptions(env="a:b", agent=None, video_every=0)
    words = video_command(tmp_path, tmp_path / "a.mp4")
    assert words[3:] == ["video", str(tmp_path), "--out", str(tmp_path / "a.mp4")]


REFUSE = "import sys; sys.exit(print('rl-replicator: error: no pygame', file=sys.stderr) or 2)"
CRASH = "import sys; print('made'); raise RuntimeError('a fault')"


def test_a_film_that_is_refused_at_the_end_is_one_warning(run, capfd, caplog):
    film_at_the_end(run, lambda _: [sys.executable, "-c", REFUSE])
    assert [record.getMessage() for record in caplog.records] == ["no video was made: no pygame"]
    assert capfd.readouterr().err == ""
    caplog.clear()
    film_at_the_end(run, lambda _: [sys.executable, "-c", CRASH])
    out, err = capfd.readouterr()
    assert out == "made\n" and "Traceback" in err and not caplog.records


def test_a_machine_that_cannot_render_is_told_once_and_makes_no_further_films(run, capfd, caplog):
    for code, warnings, errors in ((REFUSE, 1, 0), (CRASH, 0, 2)):
        one = make(run, 10, code)
        for steps in (10, 20):
            one.tick(steps)
            if one._process is not None:
                one._process.wait()
        one.close()
        messages = [record.getMessage() for record in caplog.records]
        assert messages == ["no films are made: no pygame"] * warnings
        assert capfd.readouterr().err.count("Traceback") == errors
        caplog.clear()


def test_a_film_that_cannot_be_started_is_one_warning_and_the_run_goes_on(run, caplog, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no temporary folder")

    def messages():
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    def film(command=lambda run_dir, output: [sys.executable, "-c", TOUCH, str(output)]):
        one = Films(run, 10, command)
        for steps in (1, 10, 20):
            one.tick(steps)
        assert one._process is None
        one.close()
        return messages()

    [told] = film(lambda *_: [str(run.path / "no-such-program")])
    assert told.startswith("no films are made: ") and "no-such-program" in told
    (run.path / "films").touch()
    [told] = film()
    assert told.startswith("no films are made: ") and str(run.path / "films") in told
    (run.path / "films").unlink()
    with monkeypatch.context() as context:
        context.setattr(tempfile, "TemporaryFile", refuse)
        assert film() == ["no films are made: no temporary folder"]
    film_at_the_end(run, lambda _: [str(run.path / "no-such-program")])
    [told] = messages()
    assert told.startswith("no video was made: ") and "no-such-program" in told
