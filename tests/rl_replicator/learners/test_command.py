"""A learner in the user's own file, outside this repository."""

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.cli import main
from rl_replicator.cli.train import train
from rl_replicator.errors import UsageError
from rl_replicator.learners import command
from rl_replicator.learners.run_options import RunOptions
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


def test_a_job_that_could_not_continue_after_a_restart_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for replicas in ("multi_worker", "multi_worker_async:max_staleness=4", "1"):
        if replicas == "1":  # A job of one process may have any replicas.
            monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["127.0.0.1:1"]}}))
        expected = f"expected --run-dir with --replicas {replicas} in a job, got none"
        with pytest.raises(UsageError, match=expected):
            train(f"{__name__}:make_regression", replicas=replicas)
    assert not any(tmp_path.iterdir())


def test_a_disk_without_space_for_images_ends_a_run_in_one_line(tmp_path, monkeypatch, capsys):
    """tests/conformance/test_runs.py shows the same of metrics."""

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)  # The PNG of `Learner.images`.
    name = f"{__name__}:make_regression"
    assert main.main(["train", name, "--steps", "15", "--run-dir", str(tmp_path / "run")]) == 74
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("rl-replicator: error: cannot write the metrics of the run: [Errno 28]")
    assert line.endswith("; free some space, then continue with the same --run-dir")


def make_regression(replicator, config: tiny_learners.Config):
    return tiny_learners.Regression(replicator, config)


@pytest.fixture
def importable(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("spirals_learner", None)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("spirals_learner:make", "expected a function 'make' in the module spirals_learner, found"),
        ("spirals_learner:spirals", "expected spirals_learner:spirals to annotate its config"),
        ("spiral_learner:make_learner", "as in an import, .*, found no 'spiral_learner'"),
        ("spirals_learner.py:make_learner", "found no 'spirals_learner.py'"),
        ("./spirals_learner.py:make_learner", "as in an import, .* correct './spirals_learner.py"),
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


def test_configs_that_are_no_options():
    @dataclasses.dataclass(frozen=True)
    class Taken:
        replicas: int = 3

    @dataclasses.dataclass(frozen=True)
    class Needed:
        depth: int

    for kind, match in (
        (Taken, "no field of RunOptions, got 'replicas'"),
        (Needed, "a default for every field of Needed, got none for 'depth'"),
    ):
        with pytest.raises(UsageError, match=match):
            mine(print, kind).options_from({})


@dataclasses.dataclass(frozen=True)
class Machine(tiny_learners.Config):
    """One of its settings depends on the machine."""

    precision: str = "auto"

    def on_this_machine(self):
        return dataclasses.replace(
            self, precision=MACHINE if self.precision == "auto" else self.precision
        )


MACHINE = "bfloat16"


def mine(make_learner, config_type=tiny_learners.Config):
    return command.LearnerCommand("mine", config_type, make_learner)


def options(run_dir=None, **settings):
    return RunOptions(config=tiny_learners.Config(**settings), run_dir=run_dir)


def files(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def test_a_run_goes_on_as_it_began(tmp_path, monkeypatch, capsys):
    made = []

    def make_learner(replicator, config):
        made.append(config.precision)
        return tiny_learners.Regression(replicator, config)

    machine = mine(make_learner, Machine)

    def train(**settings):
        return machine.train(RunOptions(config=Machine(**settings), run_dir=tmp_path / "run"))

    assert train(steps=20) == 0
    line = 'with the lowest error (best="-error"; "error" keeps the highest)'
    assert f"best/ keeps the checkpoint {line}\n" in capsys.readouterr().out
    monkeypatch.setattr(sys.modules[__name__], "MACHINE", "float32")
    with pytest.raises(UsageError, match=r"config\.learning_rate was 0\.1 and is now 0\.2"):
        train(steps=30, learning_rate=0.2)
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
    assert machine.train(RunOptions(config=Machine(steps=30), resume=True)) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished: all 30 steps")


def test_a_run_without_evaluation_ends_with_its_last_metrics(tmp_path, capsys):
    class Unevaluated(tiny_learners.Regression):
        def evaluation(self):
            return None

    mine(Unevaluated).train(options(tmp_path, steps=4))
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
    text = f'trainable = "{name}"\n[options]\nsteps = 1\nfolder = "~/data"\n'
    (tmp_path / "settings.toml").write_text(text)
    run = train(config="~/settings.toml", run_dir="~/python", folder="~/data")
    assert run.path == tmp_path / "python"
    assert main.main(["train", "--config=~/settings.toml", "--run-dir=~/words"]) == 0
    for folder in (run.path, tmp_path / "words"):
        assert RunDirectory(folder).config()["options"]["folder"] == str(tmp_path / "data")


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
    assert main.main(["train", "--run-dir", run, "--steps", "2", "--data-dir", "moved"]) == 0
    moved = tmp_path / "elsewhere" / "moved"
    config = RunDirectory(Path(run)).config()
    assert config["options"]["data_dir"] == config["identity"]["config"]["data_dir"] == str(moved)
    assert main.main(["eval", run]) == 0
    assert main.main(["eval", run, "--data-dir", "again"]) == 0
    export = ["export", run, "--out", "model", "--data-dir", "again"]
    assert main.main(export) == 2  # It serves nothing, but the learner was made.
    assert places == [tmp_path / "data", moved, moved, Path("again"), Path("again")]
    RunDirectory(Path("without")).describe(f"{__name__}:make_regression", {"config": {}}, {})
    assert main.main(["eval", "without", "--data-dir", "again"]) == 2


def test_a_run_that_is_refused_leaves_nothing(tmp_path, monkeypatch, capsys):
    class Failing(tiny_learners.Regression):
        def step_fn(self, batch):
            raise ValueError("shapes")

    class Refused(tiny_learners.Regression):
        def input_fn(self, context):
            raise UsageError("refused")

    monkeypatch.chdir(tmp_path)
    for learner, settings, error in (
        (Refused, {}, "refused"),
        (Failing, {}, "shapes"),
        (tiny_learners.Regression, {"best": "-loss"}, "one of error, examples, got '-loss'"),
    ):
        with pytest.raises(Exception, match=error):
            mine(learner).train(options(**settings))
        assert not any(tmp_path.iterdir()) and "best/ keeps" not in capsys.readouterr().out

    class Late(Refused):
        def input_fn(self, context):
            writer = MetricWriter(tmp_path / "late", "steps")
            writer.write("train", 1, {"loss": 1.0})
            writer.close()
            super().input_fn(context)

    with pytest.raises(UsageError, match="refused"):
        mine(Late).train(options(tmp_path / "late"))
    assert read_metrics(tmp_path / "late", "train")["loss"] == [1.0]  # What was trained stays.
    (tmp_path / "empty").mkdir()

    class Ending(tiny_learners.Regression):
        def input_fn(self, context):
            return super().input_fn(context).take(0)

    with pytest.raises(UsageError, match="it ended after 0"):
        mine(Ending).train(options(tmp_path / "empty"))
    assert [*(tmp_path / "empty").iterdir()] == []  # The folder is the user's.


def test_options_that_are_refused_do_not_stay_in_the_run(tmp_path):
    class Refusing(tiny_learners.Regression):
        def input_fn(self, context):
            if self.num_steps == 4:
                raise UsageError("refused")
            return super().input_fn(context)

    assert mine(Refusing).train(options(tmp_path / "run", steps=2)) == 0
    before = files(tmp_path / "run")
    with pytest.raises(UsageError, match="refused"):
        mine(Refusing).train(options(tmp_path / "run", steps=4))
    assert files(tmp_path / "run") == before


def test_trackers_are_told_that_a_run_has_failed(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)  # No repository.

    class Failing(command.RunListener):
        def evaluated(self, figures):
            raise ValueError("not good enough")

    asked = dataclasses.replace(options(tmp_path / "run"), track=["mlflow"])
    with pytest.raises(ValueError, match="not good enough"):
        mine(tiny_learners.Regression).train(asked, Failing())
    (status,) = (tmp_path / "run" / "mlflow").glob("*/*/meta.yaml")
    assert "\nstatus: 4\n" in status.read_text()  # FAILED.


@pytest.mark.parametrize("steps", [60.0, None])
def test_what_makes_no_learner_of_whole_steps_is_refused(tmp_path, monkeypatch, steps):
    def make_learner(replicator, config):
        learner = tiny_learners.Regression(replicator, config)
        learner.num_steps = steps
        if steps is None:
            del learner.num_steps  # As if the constructor had not set it.
        return learner

    monkeypatch.chdir(tmp_path)
    for make, expected in (
        (make_learner, f"num_steps of Regression to be a whole number .*, got {steps}; set it"),
        (lambda replicator, config: None, "expected mine to return .*Learner, got NoneType"),
    ):
        with pytest.raises(UsageError, match=expected):
            mine(make).train(options())
    assert not any(tmp_path.iterdir())
