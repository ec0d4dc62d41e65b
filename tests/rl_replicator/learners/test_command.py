"""A learner in the user's own file, outside this repository."""

import dataclasses
import enum
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import VariableValues
from rl_replicator.cli import main
from rl_replicator.cli.train import train
from rl_replicator.errors import UsageError
from rl_replicator.learners import command
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.runs import events, metrics
from rl_replicator.runs.metrics import MetricWriter, read_metrics
from rl_replicator.runs.run_directory import RunDirectory, options_used
from tests.rl_replicator.learners import tiny_learners
from tests.suite import forked

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "spirals_learner.py"
NAME = "spirals_learner:make_learner"


@pytest.fixture
def folder(tmp_path):
    shutil.copy(EXAMPLE, tmp_path)
    return tmp_path


# The tests themselves may have set it; the command sets it only if it is unset.
INHERITED = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}


def start(folder, *words):
    return subprocess.Popen(
        [*forked.python(), "-m", "rl_replicator.cli.main", *map(str, words)],
        cwd=folder,
        env={**INHERITED, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, status=0):
    out, error = process.communicate(timeout=250)
    assert process.returncode == status, error
    return out


def weights(run):
    path = Checkpointer(run / "checkpoints").latest().path
    return VariableValues.read(path / "learner")


FROM_PYTHON = f"""
import rl_replicator
heard = []
run = rl_replicator.train(
    {NAME!r}, replicas="multi_worker", run_dir="run", steps=20, on_evaluation=heard.append
)
print(f"returned {{run.path}}, heard of {{len(heard)}}")
"""


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_every_worker_of_a_job_gets_the_run_from_python(folder):
    (folder / "program.py").write_text(FROM_PYTHON)
    supervisor = [sys.executable, "-m", "rl_replicator.jobs", "--workers", "2"]
    done = subprocess.run(
        [*supervisor, "--max-restarts", "0", "--", *forked.python(), "program.py"],
        cwd=folder,
        env={**INHERITED, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    returned = sorted(line for line in done.stdout.splitlines() if "returned" in line)
    assert returned == [
        "worker 0 | returned run, heard of 1",
        "worker 1 | returned run, heard of 0",
    ]


class Interrupted(tiny_learners.Regression):
    def images(self, step):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().images(step)


def test_a_job_is_continued_by_its_own_command(tmp_path, monkeypatch, capsys):
    make = command._make_replicator
    monkeypatch.setattr(command, "_make_replicator", lambda _, deterministic: make("1", False))
    mine = command.LearnerCommand("mine", tiny_learners.Config, Interrupted)
    options = RunOptions("multi_worker", tmp_path, config=tiny_learners.Config())
    assert mine.train(options) == 128 + signal.SIGTERM
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "stopped and saved" in x)
    assert line.endswith("; the job continues when it is started again by the same command")


@pytest.mark.parametrize(
    "replicas", ["multi_worker", "multi_worker_async", "multi_worker_async:max_staleness=4"]
)
def test_a_job_that_could_not_continue_after_a_restart_is_refused(tmp_path, monkeypatch, replicas):
    monkeypatch.chdir(tmp_path)
    expected = f"expected --run-dir with --replicas {replicas} in a job, got none"
    with pytest.raises(UsageError, match=expected):
        train(f"{__name__}:make_regression", replicas=replicas)
    assert not any(tmp_path.iterdir())


def test_so_is_a_job_of_one_process_with_other_replicas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["127.0.0.1:1"]}}))
    with pytest.raises(UsageError, match="expected --run-dir with --replicas 1 in a job, got none"):
        train(f"{__name__}:make_regression", replicas="1", steps=2)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (metrics.EventFile, "add_scalar"),
        (metrics.EventFile, "add_image"),
        (Path, "write_bytes"),  # The PNG of `Learner.images`.
    ],
)
def test_a_disk_without_space_for_metrics_ends_a_run_in_one_line(
    tmp_path, monkeypatch, capsys, owner, method
):
    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(owner, method, fail)
    name = f"{__name__}:make_regression"
    assert main.main(["train", name, "--steps", "15", "--run-dir", str(tmp_path / "run")]) == 74
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("rl-replicator: error: cannot write the metrics of the run: [Errno 28]")
    assert line.endswith("; free some space, then continue with the same --run-dir")


def make_regression(replicator, config: tiny_learners.Config):
    return tiny_learners.Regression(replicator, config)


class Shade(enum.Enum):
    DARK = enum.auto()
    LIGHT = enum.auto()


@dataclasses.dataclass(frozen=True)
class Rich(tiny_learners.Config):
    """Has settings of many types."""

    sizes: list[int] = dataclasses.field(default_factory=lambda: [1])
    shades: tuple[Shade, ...] = tuple(Shade)
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    inner: tiny_learners.Config | None = None
    shape: Sequence[int] = (1,)
    files: tuple[Path, ...] = ()


rich = []


def make_rich(replicator, config: Rich):
    rich.append(config)
    return tiny_learners.Regression(replicator, config)


def test_a_run_goes_on_with_settings_of_all_types(tmp_path, monkeypatch):
    run = str(tmp_path / "run")
    words = ["train", f"{__name__}:make_rich", "--steps", "10", "--sizes", "2", "3", "--shades"]
    words += ["LIGHT", "--rates", "a", "0.5", "--shape", "4", "--files", "b", "--run-dir", run]
    assert main.main([*words, "inner:config", "--inner.steps", "3"]) == 0
    assert main.main(["train", "--run-dir", run, "--steps", "15"]) == 0
    assert main.main(["eval", run]) == 0
    shades, inner = (Shade.LIGHT,), tiny_learners.Config(steps=3)
    first = Rich(10, 0.1, 15, "-error", [2, 3], shades, {"a": 0.5}, inner, [4], (Path("b"),))
    longer = dataclasses.replace(first, steps=15)
    assert rich == [first, longer, longer]


@dataclasses.dataclass(frozen=True)
class Ambiguous(tiny_learners.Config):
    """A path that is stored like a text."""

    place: str | Path = Path("here")


def make_ambiguous(replicator, config: Ambiguous):
    return tiny_learners.Regression(replicator, config)


def test_a_setting_that_would_not_come_back_is_refused_before_there_is_a_run(
    tmp_path, monkeypatch, capsys
):
    words = ["train", f"{__name__}:make_ambiguous", "--run-dir", str(tmp_path / "runs" / "run")]
    assert main.main(words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "expected a type that config.json can restore for 'place', got PosixPath('here')" in line
    assert not list(tmp_path.iterdir())


@pytest.fixture
def importable(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("spirals_learner", None)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("spirals_learner:make", "expected a function 'make' in .*; define make"),
        ("spirals_learner:spirals", "expected spirals_learner:spirals to annotate its config"),
        ("spiral_learner:make_learner", "such as the file spiral_learner.py"),
        ("spirals_learner.py:make_learner", "name the module as in an import, package.module, not"),
        (
            "./spirals_learner.py:make_learner",
            "got './spirals_learner.py:make_learner'; name the mo",
        ),
        ("docs/spirals_learner.py:make_learner", "name the module as in an import, package.module"),
        ("/docs/spirals_learner:make_learner", "name the module as in an import, package.module"),
        ("sys:make", "expected a function 'make' in the module sys, found none"),
        ("sys:exit", "expected sys:exit to annotate its config"),
    ],
)
def test_names_that_name_nothing(importable, name, error):
    with pytest.raises(UsageError, match=error):
        command.of_module(name)


def test_only_the_annotation_of_the_config_must_exist(tmp_path, monkeypatch):
    text = """
        from __future__ import annotations
        import dataclasses, functools
        from typing import TYPE_CHECKING, Annotated

        if TYPE_CHECKING:
            import rl_replicator as rr

        @dataclasses.dataclass(frozen=True)
        class Config:
            steps: int = 3

        def make_learner(replicator: rr.Replicator, config: Config) -> rr.learners.Learner: ...
        def make_kind(replicator: rr.Replicator, config: Config, kind): ...
        partial = functools.partial(make_kind, kind="a")
        def unknown(replicator, config: Settings): ...

        @dataclasses.dataclass
        class Kind:
            replicator: rr.Replicator
            config: Config

        def noted(replicator, config: Annotated[Config, "a note"]): ...
    """
    (tmp_path / "annotated_learner.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("make_learner", "partial", "Kind", "noted"):
        found = command.of_module(f"annotated_learner:{name}")
        assert found.config_type.__name__ == "Config"
    with pytest.raises(UsageError, match="annotate its config with a dataclass, got 'Settings'"):
        command.of_module("annotated_learner:unknown")


def test_options_are_those_of_the_config(importable, capsys):
    mine = command.of_module(NAME)
    chosen = mine.parse(["--layers", "8", "9", "--replicas", "2"], {})
    assert chosen.config.layers == (8, 9) and chosen.replicas == "2" and chosen.config.seed == 1
    with pytest.raises(SystemExit):
        mine.parse(["--lerning-rate", "1"], {})
    assert "--lerning-rate" in capsys.readouterr().err


def test_options_that_every_learner_has():
    @dataclasses.dataclass(frozen=True)
    class Config:
        replicas: int = 3

    @dataclasses.dataclass(frozen=True)
    class Own:
        config: str = "a"

    for kind, name in ((Config, "replicas"), (Own, "config")):
        with pytest.raises(UsageError, match=f"no field of RunOptions, got '{name}'"):
            command.LearnerCommand("mine", kind, lambda replicator, config: None).options_from({})


def test_a_field_without_default():
    @dataclasses.dataclass(frozen=True)
    class Config:
        depth: int

    with pytest.raises(UsageError, match="a default for every field of Config, got none for 'dep"):
        command.LearnerCommand("mine", Config, lambda replicator, config: None).options_from({})


@dataclasses.dataclass(frozen=True)
class Machine(tiny_learners.Config):
    """One of its settings depends on the machine."""

    precision: str = "auto"

    def on_this_machine(self):
        return dataclasses.replace(
            self, precision=MACHINE if self.precision == "auto" else self.precision
        )


MACHINE = "bfloat16"


def files(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def test_a_run_goes_on_as_it_began_and_ends_once(tmp_path, monkeypatch, capsys):
    made = []

    def make_learner(replicator, config):
        made.append(config.precision)
        return tiny_learners.Regression(replicator, config)

    mine = command.LearnerCommand("mine", Machine, make_learner)

    def train(**settings):
        return mine.train(RunOptions(config=Machine(**settings), run_dir=tmp_path / "run"))

    assert train(steps=20) == 0
    monkeypatch.setattr(sys.modules[__name__], "MACHINE", "float32")
    before = files(tmp_path / "run")
    capsys.readouterr()
    assert train(steps=20) == 0
    assert capsys.readouterr().out.startswith("finished: all 20 steps of the run in ")
    assert files(tmp_path / "run") == before
    # The same run, killed before the trackers had its files.
    told = tmp_path / "run" / "events.csv"
    told.write_text("".join(told.read_text().splitlines(keepends=True)[:-1]))
    added = []
    with monkeypatch.context() as patch:
        patch.setattr(command.trackers, "add_files", lambda run, without: added.append(run.path))
        assert [train(steps=20), train(steps=20)] == [0, 0]
    assert added == [tmp_path / "run"] and events.is_finished(events.read(tmp_path / "run"))
    before = files(tmp_path / "run")
    with pytest.raises(UsageError, match="expected at least 20 steps"):
        train(steps=19)
    with pytest.raises(UsageError, match=r"config\.learning_rate was 0\.1 and is now 0\.2"):
        train(steps=30, learning_rate=0.2)
    assert files(tmp_path / "run") == before
    intact = Checkpointer(tmp_path / "run" / "checkpoints").latest()
    damaged = shutil.copytree(intact.path, intact.path.with_name("999999_step_25"))
    (damaged / "manifest.json").write_text("{}")
    assert train(steps=30) == 0
    assert not damaged.exists() and damaged.with_name("damaged-999999_step_25").exists()
    assert read_metrics(tmp_path / "run", "evaluation")["steps"].tolist() == [15, 20, 30]
    assert set(made) == {"bfloat16"}
    config = RunDirectory(tmp_path / "run").config()
    assert config["options"]["precision"] == "auto"  # Another run may begin on another machine.
    assert options_used(config)["precision"] == "bfloat16"
    with pytest.raises(UsageError, match=r"config\.precision was 'bfloat16' and is now 'float32'"):
        train(steps=30, precision="float32")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "run").rename(tmp_path / "runs" / "mine" / "mine-1")
    assert mine.train(RunOptions(config=Machine(steps=30), resume=True)) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished: all 30 steps")


@pytest.mark.parametrize(
    ("best", "line"),
    [
        ("error", "with the highest error (Evaluation.best; '-error' keeps the lowest)"),
        ("-error", "with the lowest error (Evaluation.best; 'error' keeps the highest)"),
    ],
)
def test_a_run_says_which_checkpoint_it_keeps_as_the_best(tmp_path, capsys, best, line):
    mine = command.LearnerCommand("mine", tiny_learners.Config, tiny_learners.Regression)
    config = tiny_learners.Config(steps=1, best=best)
    assert mine.train(RunOptions(config=config, run_dir=tmp_path / "run")) == 0
    assert f"best/ keeps the checkpoint {line}\n" in capsys.readouterr().out


class Unevaluated(tiny_learners.Regression):
    def evaluation(self):
        return None


def test_a_run_without_evaluation_ends_with_its_last_metrics(tmp_path, capsys):
    mine = command.LearnerCommand("mine", tiny_learners.Config, Unevaluated)
    mine.train(RunOptions(config=tiny_learners.Config(steps=4), run_dir=tmp_path))
    loss = read_metrics(tmp_path, "train")["loss"][-1]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"loss {loss:.4f}, first ") and "after 4 steps" in last


@dataclasses.dataclass(frozen=True)
class WithFolder(tiny_learners.Config):
    folder: str = ""


def make_with_folder(replicator, config: WithFolder):
    return tiny_learners.Regression(replicator, config)


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    name = f"{__name__}:make_with_folder"
    run = train(name, run_dir="~/python", steps=1, folder="~/data")
    assert run.path == tmp_path / "python"
    assert run.config()["options"]["folder"] == str(tmp_path / "data")
    text = f'trainable = "{name}"\n[options]\nsteps = 1\nfolder = "~/data"\n'
    (tmp_path / "settings.toml").write_text(text)
    assert main.main(["train", "--config=~/settings.toml", "--run-dir=~/words"]) == 0
    options = RunDirectory(tmp_path / "words").config()["options"]
    assert options["folder"] == str(tmp_path / "data")


places = []  # Where each learner has looked for its data.


@dataclasses.dataclass(frozen=True)
class WithData(tiny_learners.Config):
    data_dir: Path | None = None


def make_with_data(replicator, config: WithData):
    places.append(config.data_dir)
    return tiny_learners.Regression(replicator, config)


def test_a_run_goes_on_from_another_folder_and_with_moved_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places.clear()
    run = train(f"{__name__}:make_with_data", run_dir="run", steps=1, data_dir="data").path
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    run = str(tmp_path / run)
    assert main.main(["train", "--run-dir", run, "--steps", "2"]) == 0
    assert places == [tmp_path / "data"] * 2
    assert main.main(["train", "--run-dir", run, "--steps", "3", "--data-dir", "moved"]) == 0
    moved = tmp_path / "elsewhere" / "moved"
    config = RunDirectory(Path(run)).config()
    assert config["options"]["data_dir"] == config["identity"]["config"]["data_dir"] == str(moved)
    assert main.main(["eval", run]) == 0
    assert main.main(["eval", run, "--data-dir", "again"]) == 0
    export = ["export", run, "--out", "model", "--data-dir", "again"]
    assert main.main(export) == 2  # It serves nothing, but the learner was made.
    assert places[2:] == [moved, moved, Path("again"), Path("again")]
    # A data folder may look like a run; the run to export is the positional argument.
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    assert main.main(["export", "--data-dir", str(other), "--no-best", run, "--out", "model"]) == 2
    assert places[-1] == other


@dataclasses.dataclass(frozen=True)
class Sloppy(tiny_learners.Config):
    data_dir: Path = "data"


def test_a_place_that_is_written_as_a_string(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = command.LearnerCommand("mine", Sloppy, tiny_learners.Regression)
    assert mine.train(RunOptions(config=Sloppy(steps=1), run_dir=tmp_path / "run")) == 0
    assert RunDirectory(tmp_path / "run").config()["options"]["data_dir"] == str(tmp_path / "data")


def test_a_run_that_is_refused_leaves_nothing(tmp_path, monkeypatch):
    class Refused(tiny_learners.Regression):
        def input_fn(self, context):
            raise UsageError("refused")

    monkeypatch.chdir(tmp_path)
    mine = command.LearnerCommand("mine", tiny_learners.Config, Refused)
    with pytest.raises(UsageError, match="refused"):
        mine.train(RunOptions(config=tiny_learners.Config()))
    assert not any(tmp_path.iterdir())

    class Late(Refused):
        def input_fn(self, context):
            writer = MetricWriter(tmp_path / "late", "steps")
            writer.write("train", 1, {"loss": 1.0})
            writer.close()
            super().input_fn(context)

    late = command.LearnerCommand("late", tiny_learners.Config, Late)
    with pytest.raises(UsageError, match="refused"):
        late.train(RunOptions(config=tiny_learners.Config(), run_dir=tmp_path / "late"))
    assert read_metrics(tmp_path / "late", "train")["loss"] == [1.0]  # What was trained stays.
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="refused"):
        mine.train(RunOptions(config=tiny_learners.Config(), run_dir=tmp_path / "empty"))
    assert [*(tmp_path / "empty").iterdir()] == []  # The folder is the user's.

    class Ending(tiny_learners.Regression):
        def input_fn(self, context):
            return super().input_fn(context).take(0)

    ending = command.LearnerCommand("ending", tiny_learners.Config, Ending)
    with pytest.raises(UsageError, match="it ended after 0"):
        ending.train(RunOptions(config=tiny_learners.Config(), run_dir=tmp_path / "empty"))
    assert [*(tmp_path / "empty").iterdir()] == []


def test_options_that_are_refused_do_not_stay_in_the_run(tmp_path):
    class Refusing(tiny_learners.Regression):
        def input_fn(self, context):
            if self.num_steps == 4:
                raise UsageError("refused")
            return super().input_fn(context)

    mine = command.LearnerCommand("mine", tiny_learners.Config, Refusing)

    def train(steps):
        config = tiny_learners.Config(steps=steps)
        return mine.train(RunOptions(config=config, run_dir=tmp_path / "run"))

    assert train(2) == 0
    before = files(tmp_path / "run")
    with pytest.raises(UsageError, match="refused"):
        train(4)
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize("identity", [{}, {"config": 3}])
def test_a_run_whose_settings_are_not_whole_is_refused_in_one_line(tmp_path, identity):
    mine = command.LearnerCommand("mine", tiny_learners.Config, tiny_learners.Regression)
    RunDirectory(tmp_path).describe("mine", identity, {})
    found = identity.get("config", "none")
    with pytest.raises(UsageError, match=f"expected 'config' among the stored .* got {found}$"):
        mine.evaluate(tmp_path)


def test_trackers_are_told_that_a_run_has_failed(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)  # No repository.

    class Failing(command.RunListener):
        def evaluated(self, figures):
            raise ValueError("not good enough")

    mine = command.LearnerCommand("mine", tiny_learners.Config, tiny_learners.Regression)
    settings = {"config": tiny_learners.Config(), "run_dir": tmp_path / "run", "track": ["mlflow"]}
    with pytest.raises(ValueError, match="not good enough"):
        mine.train(RunOptions(**settings), Failing())
    (status,) = (tmp_path / "run" / "mlflow").glob("*/*/meta.yaml")
    assert "\nstatus: 4\n" in status.read_text()  # FAILED.


def test_something_that_is_no_learner():
    @dataclasses.dataclass(frozen=True)
    class Config:
        pass

    mine = command.LearnerCommand("mine", Config, lambda replicator, config: None)
    with pytest.raises(UsageError, match="expected mine to return .*Learner, got NoneType"):
        mine.train(mine.parse([], {}))


@pytest.mark.parametrize("steps", [-5, 0, 3 * 1000 / 128, 60.0, None])
def test_a_number_of_steps_that_is_none_is_refused(tmp_path, monkeypatch, steps):
    def make_learner(replicator, config):
        learner = tiny_learners.Regression(replicator, config)
        learner.num_steps = steps
        if steps is None:
            del learner.num_steps  # As if the constructor had not set it.
        return learner

    monkeypatch.chdir(tmp_path)
    mine = command.LearnerCommand("mine", tiny_learners.Config, make_learner)
    expected = f"num_steps of Regression to be a whole number of at least 1, got {steps}; set it"
    with pytest.raises(UsageError, match=expected):
        mine.train(RunOptions(config=tiny_learners.Config()))
    assert not any(tmp_path.iterdir())
