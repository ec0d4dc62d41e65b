"""Whole runs: they train, stop, are killed, continue, and refuse what they cannot do."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run
from dm_env import specs

import launchpad as lp
import rl_replicator
from agents import d4pg
from agents.d4pg import D4PGConfig
from agents.nodes import learner, saver
from agents.nodes.run_plan import EvaluationSchedule
from agents.replay.config import ReplayConfig
from agents.runs.options import AgentOptions
from agents.runs.results import is_complete
from agents.suites import results
from environments.fakes import TargetMatching
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.cli import main
from rl_replicator.errors import CheckpointError, UsageError
from rl_replicator.runs import events
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run import RunListener
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.runs.ctrl_c import CtrlC
from tests.suite import forked
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("plain_graphs")
TARGET = "environments.fakes:target"
SMALL = D4PGConfig(
    policy_layers=(32, 32),
    critic_layers=(32, 32),
    global_batch_size=32,
    steps_per_call=4,
    value_min=0.0,
    value_max=20.0,
    replay=ReplayConfig(priority_exponent=0.6, min_size=200, samples_per_insert=16.0),
)


def options(run_dir, **changes):
    settings = {
        "env": TARGET,
        "steps": 1000,
        "run_dir": run_dir,
        "agent": SMALL,
        "checkpoint_seconds": 1.0,
        "video": False,
        "evaluation": EvaluationSchedule(every=400, episodes=2, last_episodes=3),
    }
    return AgentOptions(**(settings | changes))


def latest_progress(run_dir):
    folder = Checkpointer(run_dir / "checkpoints").latest().path
    return json.loads((folder / "progress" / "state.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A complete run in threads, which tests copy and continue."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    assert d4pg.command.train(options(run_dir, profile_steps="8:16")) == 0
    return run_dir


@pytest.fixture
def run_dir(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_run_leaves_what_it_promises(finished, capsys):
    assert not (finished / "evaluation.mp4").exists()  # `video=False`.
    assert (finished / "evaluation.png").stat().st_size > 1000
    assert len([*finished.glob("tensorboard/plugins/profile/*/*.xplane.pb")]) == 1
    assert json.loads((finished / "config.json").read_text())["trainable"] == "d4pg"
    evaluator = read_metrics(finished, "evaluator")
    assert evaluator["environment_steps"][-1] == 1000 and evaluator["episodes"][-1] == 3
    assert evaluator["learner_steps"][-1] == latest_progress(finished)["learner_steps"]
    assert evaluator["failed_share"][-1] == 0  # Even a constant action earns half of the reward.
    row = results.read_run(finished)[-1]
    assert row.return_min <= row.return_median <= row.return_max and row.agent == "d4pg"
    split = {name: column[-1] for name, column in read_metrics(finished, "time").items()}
    # Nodes report their time once a second: a run as short as this may have no report.
    spent = [share for name, share in split.items() if name.startswith("actor_")]
    assert not spent or (len(spent) >= 4 and 0 < sum(spent) <= 1.2)
    metrics = read_metrics(finished, "learner")
    for name in ("critic_loss", "q_mean", "value_edge_mass_low", "value_edge_mass_high"):
        assert np.isfinite(metrics[name]).all(), name
    progress = latest_progress(finished)
    assert progress["environment_steps"] == 1000 and progress["episodes"] == 50
    # The limiter holds the learner to 16 samples per insert, less the 200 rows before it starts.
    expected = (1000 - 200) * 16 / 32
    assert abs(progress["learner_steps"] - expected) <= 0.25 * expected
    told = []
    for _ in range(2):
        assert d4pg.command.evaluate(finished, episodes=2, seed=3) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and told[0].startswith("return ")


def test_a_finished_run_goes_on_when_asked_for_more(run_dir, caplog):
    """With other numbers of nodes."""
    before = latest_progress(run_dir)
    # Its newest checkpoint is damaged: the run continues from the one before, in all its nodes.
    intact = Checkpointer(run_dir / "checkpoints").latest()
    damaged = shutil.copytree(intact.path, intact.path.with_name("999999_step_1"))
    flip_a_bit(damaged / "replay" / "chunks.tfrecord")
    worse = shutil.copytree(intact.path, intact.path.with_name("999998_step_1"))
    (worse / "manifest.json").write_text("{")
    (run_dir / "evaluation.png").unlink()
    (run_dir / "evaluation.png").mkdir()  # A plot that cannot be written does not fail the run.
    more = options(run_dir, steps=1500, replicas="2", actors=2, caches=1)
    assert d4pg.command.train(more) == 0
    assert "no plot was drawn" in caplog.text
    after = latest_progress(run_dir)
    assert after["environment_steps"] == 1500 and after["episodes"] > before["episodes"]
    assert after["learner_steps"] > before["learner_steps"] + 100
    steps = read_metrics(run_dir, "evaluator")["environment_steps"]
    assert (np.diff(steps) > 0).all() and steps[-1] == 1500
    assert "checkpoint of step 1 is damaged" in caplog.text
    assert damaged.with_name(f"damaged-{damaged.name}").exists() and not damaged.exists()
    told = [event.detail for event in events.read(run_dir) if event.event != events.FINISHED]
    changed = "--steps 1500 --actors 2 --caches 1 --replicas 2 --profile-steps None"
    assert told[0] == "--steps 1000" and sorted(told[1].split()) == sorted(changed.split())


@pytest.mark.parametrize(
    ("edited", "spec", "change"),
    [
        (
            "action_spec",
            specs.BoundedArray((1,), np.float32, -5.0, 1.0),
            r"environment.action_limits was .*-1.0.* is now .*-5.0",
        ),
        (
            "observation_spec",
            specs.Array((3,), np.float32, "observation"),
            r"environment.observations was \[2\].* is now \[3\]",
        ),
    ],
)
def test_an_edited_environment_is_refused_in_one_line(
    run_dir, tmp_path, monkeypatch, capsys, edited, spec, change
):
    """The policy's numbers would mean something else."""
    monkeypatch.setattr(TargetMatching, edited, lambda self: spec)
    with pytest.raises(UsageError, match=change):
        d4pg.command.train(options(run_dir, steps=1500))
    out, dataset = ["--out", str(tmp_path / "model")], ["--dataset", "edited/target-v0"]
    for command, *words in (["eval"], ["export", *out], ["video"], ["record", *dataset]):
        assert main.main([command, str(run_dir), *words]) == 2
        assert "in which the policy was trained, got" in capsys.readouterr().err.splitlines()[-1]


def test_an_environment_that_changes_the_directory_takes_no_run_along(tmp_path, monkeypatch):
    class Stopping(RunListener):
        def started(self, run):
            places.append(run.path)
            raise InterruptedError

    places = []
    for run_dir in (Path("run"), None):
        monkeypatch.chdir(tmp_path)
        asked = options(run_dir, env="tests.environments.faulty:elsewhere")
        with pytest.raises(InterruptedError):
            d4pg.command.train(asked, Stopping())
        assert Path.cwd() != tmp_path
    assert places[0] == tmp_path / "run" and places[1].parent == tmp_path / "runs" / "d4pg"


def test_a_run_that_was_killed_before_its_plot_gets_it_by_the_same_command(run_dir, capsys):
    told, plot = run_dir / "events.csv", run_dir / "evaluation.png"
    before = told.read_text()
    told.write_text("".join(before.splitlines(keepends=True)[:-1]))
    plot.unlink(missing_ok=True)
    leftovers = [
        *(run_dir / "checkpoints" / name / "a file" for name in (".learner", ".replay")),
        run_dir / "prefill" / "0" / "a table",
        run_dir / "films" / ".000000500.partial.mp4",
    ]
    for file in leftovers:
        file.parent.mkdir(parents=True)
        file.touch()
    assert d4pg.command.train(options(run_dir)) == 0
    output = capsys.readouterr().out
    assert output.startswith("finished: all 1,000") and "\nevaluation return " in output
    assert plot.exists() and events.is_finished(events.read(run_dir))
    assert not [file for file in leftovers if file.parent.exists()]


def test_a_finished_run_may_have_exceeded_its_steps_with_more_actors(run_dir, capsys, untrained):
    """Each actor's last action was repeated beyond the run's steps."""
    progress = latest_progress(run_dir) | {"environment_steps": 1030}
    Checkpointer(run_dir / "checkpoints").save(
        progress["learner_steps"], {"progress": JsonPart(lambda: progress, lambda _: None)}
    )
    assert d4pg.command.train(options(run_dir)) == 0
    assert capsys.readouterr().out.startswith("finished: all 1,000 steps of the run")
    with pytest.raises(UsageError, match="--steps: expected at least 1,030, which the run in"):
        d4pg.command.train(options(run_dir, steps=1010))
    twice = options(run_dir, steps=1025, actors=2, action_repeat=4)
    assert not is_complete(RunDirectory(run_dir), twice)  # They may have taken up to 1,032.
    evaluations = run_dir / "metrics" / "evaluator.csv"
    header, *rows = evaluations.read_text().splitlines()
    evaluations.write_text("\n".join([header, *rows[:-1]]) + "\n")  # Stopped before the last one.
    assert not untrained
    assert d4pg.command.train(options(run_dir)) == 0 and untrained


def untouched(run_dir):
    return {path: path.read_bytes() for path in sorted(run_dir.rglob("*")) if path.is_file()}


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("untrained")
def test_a_run_is_warned_of_before_it_starts(tmp_path, monkeypatch, caplog):
    """A row holds two observations of 2 numbers, an action, a return and a discount."""
    monkeypatch.setattr("agents.runs.preparation.available_memory", lambda: 2e9)
    assert d4pg.command.train(options(tmp_path / "a", steps=201)) == 0
    assert not caplog.records
    assert d4pg.command.train(options(tmp_path / "b", steps=200)) == 0
    line = "starts after 200 transitions (--agent.replay.min-size), and the run ends after --steps "
    assert f"{line}200: it trains nothing" in caplog.text
    twice = options(tmp_path / "twice", steps=400, action_repeat=2)
    assert d4pg.command.train(twice) == 0
    assert f"{line}400, 200 actions: it trains nothing" in caplog.text
    replay = dataclasses.replace(SMALL.replay, max_size=10**9)
    agent = dataclasses.replace(SMALL, replay=replay)
    assert d4pg.command.train(options(tmp_path / "c", agent=agent, steps=10**10)) == 0
    assert "the 2.0 GB of free memory, got 28.0 GB for 1,000,000,000 transitions, 28" in caplog.text
    repeated = options(tmp_path / "d", agent=agent, steps=10**9, action_repeat=2)
    assert d4pg.command.train(repeated) == 0
    assert "got 14.0 GB for 500,000,000 transitions, 28" in caplog.text


def test_another_run_is_refused_and_nothing_is_touched(run_dir, tmp_path, monkeypatch):
    before = untouched(run_dir)
    for changes, message in (
        ({"seed": 2}, "seed was 1 and is now 2"),
        ({"agent": dataclasses.replace(SMALL, n_step=2)}, r"agent\.n_step was 3 and is now 2"),
        ({"replicas": "3"}, "global-batch-size: expected a multiple of 3"),
        ({"replicas": "many"}, "multi_device:2, got 'many'"),
        ({"actors": 2, "replay_shards": 2}, "replay_shards was 1 and is now 2"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            d4pg.command.train(options(run_dir, **{"steps": 1500, **changes}))
        assert "\n" not in str(error.value)
    assert untouched(run_dir) == before
    monkeypatch.chdir(tmp_path)
    own = dataclasses.replace(d4pg.command, name="my.agents:command")
    with pytest.raises(UsageError, match="under .*/runs/my.agents-command, found none; leave --"):
        own.train(options(None, resume=True))  # A colon would end a path in $PATH.
    for folder, resume in ((tmp_path / "typo", True), (tmp_path, False)):
        with pytest.raises(UsageError, match="expected the directory of a run|has other files"):
            d4pg.command.train(options(folder, resume=resume))
    assert not (tmp_path / "typo").exists()


def test_a_run_without_an_intact_checkpoint_is_refused_before_anything_starts(run_dir):
    for checkpoint in (run_dir / "checkpoints").glob("0*"):
        flip_a_bit(checkpoint / "replay" / "chunks.tfrecord")
    before = untouched(run_dir)
    with pytest.raises(CheckpointError, match=r"expected an intact .*chunks\.tfrecord.*backup"):
        d4pg.command.train(options(run_dir, steps=1500))
    assert untouched(run_dir) == before


def test_a_stopped_run_says_that_its_last_save_has_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(saver.Saver, "save_last", lambda _: False)
    monkeypatch.setattr(learner, "_SECONDS_TO_RECONNECT", 0.0)
    run = options(tmp_path / "run", steps=100_000, checkpoint_seconds=0.1)
    assert d4pg.command.train(run, CtrlC()) == 128 + signal.SIGINT
    assert Checkpointer(tmp_path / "run" / "checkpoints").latest() is not None
    out = capsys.readouterr().out
    assert "stopped; everything after the last save is lost; continue" in out


@pytest.mark.timeout(240)
def test_a_run_within_a_program_that_stops_is_stopped_and_not_complete(tmp_path, capsys):
    """No signal ends it, and it has already been evaluated."""
    raised = []

    def node():
        lp.stop_event()  # So that nothing interrupts the run's end, even on a slow machine.
        try:
            rl_replicator.train(
                "d4pg",
                env=TARGET,
                steps=100_000,
                run_dir=tmp_path / "run",
                agent=SMALL,
                video=False,
                evaluation={"every": 400, "episodes": 2},
                on_evaluation=lambda figures: lp.stop(),
            )
        except BaseException as error:
            raised.append(type(error))
            raise

    program = lp.Program("outer")
    program.add_node(lp.PyNode(node), label="trainer")
    lp.launch(program, "test_mt", termination_notice_secs=100).wait()  # No failure of the node.
    assert raised == [KeyboardInterrupt]
    assert "stopped and saved; continue with" in capsys.readouterr().out
    assert events.read(tmp_path / "run")[-1].event == events.STOPPED
    assert not (tmp_path / "run" / "evaluation.png").exists()


COMMAND = [
    *("-m", "rl_replicator.cli.main", "train", "d4pg", "--launch", "processes"),
    *("--env", "tests.agents.runs.slow_target:make", "--actors", "2", "--replay-shards", "2"),
    *("--agent.policy-layers", "32", "32", "--agent.critic-layers", "32", "32"),
    *("--agent.global-batch-size", "32", "--agent.steps-per-call", "4"),
    *("--agent.value-min", "0", "--agent.value-max", "20", "--agent.replay.min-size", "200"),
    *("--agent.replay.samples-per-insert", "16", "--checkpoint-seconds", "0.5"),
    *("--evaluation.every", "1000", "--evaluation.episodes", "1", "--no-video"),
]


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_same_program_runs_in_processes_and_outlives_one_of_its_replays(tmp_path):
    run_dir = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # As in a user's shell.
    command = [*forked.python(), *COMMAND, "--run-dir", str(run_dir), "--steps", "1000000"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def wait_for(find):
        """Waits until `find` finds something while the command runs."""
        found = wait_until(lambda: process.poll() is not None or find(), 240, pause=0.1)
        assert process.poll() is None, process.stdout.read()
        return found

    def checkpoint(counter, above=0):
        """The progress of the newest checkpoint, if this counter is above a number."""
        try:
            progress = latest_progress(run_dir)
        except (AttributeError, FileNotFoundError):
            return None  # There is none yet, or it was replaced while being read.
        return progress if progress[counter] > above else None

    def faults():
        return events.faults(events.read(run_dir))

    def column(node, name):
        return read_metrics(run_dir, node).get(name, ())

    try:
        wait_for(lambda: checkpoint("environment_steps"))
        for child in psutil.Process(forked.program(process)).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # It has ended meanwhile.
                if "replay/0" in child.cmdline():
                    child.kill()
        (fault,) = wait_for(faults)
        assert (fault.node, fault.event) == ("replay/0", "restarted")
        assert "died" in fault.detail.lower()
        steps = wait_for(lambda: checkpoint("environment_steps"))["learner_steps"]
        wait_for(lambda: checkpoint("learner_steps", above=steps + 100))
        wait_for(lambda: set(column("actor", "actor")) == {0.0, 1.0})
        # With fewer rows, no goodput is printed.
        wait_for(lambda: len(column("learner", "learner_steps")) >= 4)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "stopped and saved" in output, output
    assert "replay/0 is up again" in output
    assert "goodput " in output and ": the learner made no progress for " in output
    assert faults() == [fault]
    parts = Checkpointer(run_dir / "checkpoints").latest().path.glob("replay*")
    assert sorted(part.name for part in parts) == ["replay", "replay-1"]
