"""Bad input of every kind: one message says what was expected and what came; no file changes."""

import dataclasses
import functools
import re
import resource
import shlex

import pytest

from rl_replicator.cli import trainables

# Tried for each option: not a number, and a number that is too low. Large values are tried below.
VALUES = ("x", "-1")
ENV = "--env environments.fakes:target"
BUTTONS = "--env tests.environments.discrete_fakes:make_buttons"
NOT_NUMBERS = {"--env", "--run-dir", "--resume", "--data-dir", "--features"}
# Options that their errors do not repeat, and what these mention instead.
MENTIONED = {"--replicas": "replica"}
# A run directory that is refused last, after everything else has been checked.
OTHER_FILES = "has other files in it"


@pytest.fixture
def refused(call):
    """Runs a command that must be refused; returns its message in one line."""

    def run(*words):
        done = call(*words)
        assert (done.returncode, done.stdout) == (2, ""), (words, done)
        text = " ".join(re.sub("[\u2500-\u257f]", " ", done.stderr).split())
        assert "Traceback" not in text and text.count("rl-replicator: error:") <= 1, (words, text)
        return text

    return run


def files(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def option_names(config, prefix=""):
    """Yields the options that take a value, as they are typed: --agent.n-step."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            inner = "" if field.name == "config" else f"{prefix}{field.name}."
            yield from option_names(value, inner)
        elif not isinstance(value, bool):
            yield f"--{prefix}{field.name}".replace("_", "-")


@pytest.mark.parametrize("name", ["d4pg", "resnet", "sngan"])
def test_every_option_refuses_what_makes_no_sense(refused, tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("...")
    before = files(tmp_path)
    words = ["train", name, "--run-dir", "full"]
    words += shlex.split(ENV) if name == "d4pg" else ["--data-dir", "nowhere"]
    accepted, num_refused = set(), 0
    options = {
        *option_names(trainables.load(name).options_from({"env": "a:b"} if name == "d4pg" else {}))
    }
    for option in sorted(options - NOT_NUMBERS):
        for value in VALUES:
            line = refused(*words, option, value)
            if OTHER_FILES in line or "nowhere" in line:
                accepted.add((option, value))
                continue
            num_refused += 1
            word = option.removeprefix("--").rpartition(".")[2]
            assert MENTIONED.get(option, word) in line.replace("_", "-"), (option, value, line)
    assert files(tmp_path) == before
    assert not [option for option, value in accepted if value == "x"], accepted
    assert num_refused > 1.5 * len(options - NOT_NUMBERS), accepted


# Command, and parts of its message, which " .* " separates.
COMMANDS = {
    "trian fake": "got 'trian'; did you mean 'train'? 'rl-replicator --help' explains",
    "eval": "expected RUN_DIR after 'rl-replicator eval', got nothing;",
    "eval --episodes 3": "expected RUN_DIR after 'rl-replicator eval', got --epi",
    "eval nowhere": "of a run, but there is no nowhere/config.json",
    "eval a-file b-file": "expected",
    "video nowhere": "expected the directory of a run",
    "play LONG": "expected a path that .* of 300 characters",
    "plot": "expected at least one RUN_DIR, got none",
    "plot nowhere --out a.jpg": "--out: expected a name that ends in .png",
    "compare nowhere": "expected",
    "report nowhere --out a.pdf": "--out: expected a name that ends in .html",
    "watch nowhere": "expected the directory of a run, but there is no ",
    "zoo --out new": "expected directories of runs",
    "zoo run --out a-file": "expected a new folder",
    "zoo run --out LONG": "--out: cannot write aaa .* File name too long",
    "gone": "expected the command 'gone' at agents.cli.gone:run: No module named",
    "envs --all": "Unrecognized options: --all",
}
LSTM = "--agent.memory.core lstm"
TRAIN = {
    "": "expected something to train (",
    "fkae": "got 'fkae'; did you mean 'fake'?",
    "nowhere:make_learner": "nowhere",
    "json:make_learner": "make_learner",
    "json:dumps": "expected",
    ":make": "expected the name of a module as in an import",
    "fake": "--env STR",
    "fake --env x y": "Unrecognized options: y",
    "fake --env x --agent.leraning-rate 1": "--agent.learning-rate FLOAT",
    "fake --env x --steps abc": "--steps: invalid literal for int() .* 'abc'",
    "fake --env x --steps": "Missing value for argument '--steps'",
    "fake --env x --agent.layers 8 z": "--agent.layers: .* 'z'",
    "fake --env x --agent.learning-rate -1": "--agent.learning-rate: expected more than 0, got -1",
    "fake --env x --launch cloud": "'cloud' .* '--launch'. .* ('threads', 'process",
    "fake --env wrapped": "got 'cartpole:swinup': no module .* did you mean cartpole:swingup",
    "d4pg": "--env STR",
    "d4pg --env nothere:make": "nothere",
    "d4pg --env json:loads": "expected",
    "d4pg ENV --resume": "found none",
    "d4pg ENV --run-dir gs://bucket/run": "mounted",
    "d4pg ENV --run-dir a-file/run": "cannot write",
    "d4pg ENV --run-dir a-file": "a-file, which is a file, a link",
    "d4pg ENV --run-dir to-nothing": "to-nothing, which is a file, a link to nothing, or has",
    "d4pg ENV --run-dir LONG": "of 300 characters",
    "d4pg ENV --replicas multi_device:0": "expected",
    "d4pg ENV --replicas ²": "expected a replicator",
    "d4pg ENV --replicas multi_worker:1": "at least 2",
    "d4pg ENV --replicas multi_worker:2": "--launch",
    "d4pg ENV --replicas mesh:data=0": "expected",
    "d4pg ENV --replicas 99999999999": "at most 256",
    "d4pg ENV --agent.num-atoms 99999999999": "num-atoms",
    "d4pg ENV --agent.discount nan": "discount",
    "d4pg ENV --agent.replay.samples-per-insert inf": "up to",
    "d4pg ENV --agent.critic-loss square": "critic",
    "d4pg ENV --agent.critic-loss json:no": "no",
    "d4pg ENV --agent.exploration none:no": "none",
    "d4pg ENV --agent.policy-layers": "expected one or more layer",
    "d4pg ENV --track wendb": "--track: expected one of mlflow, wandb, got 'wendb'; did you mean w",
    "d4pg ENV --profile-steps 6:5": "--profile-steps: expected START:END, .* got 6:5",
    "d4pg ENV --agent.replay.max-size 1000000000000000": "max-size: expected less than 2**31, got",
    "d4pg ENV --actors 9999999": "--actors: expected at most .* with --launch threads and .* GB of",
    "d4pg ENV --actors 9999999 --launch processes": "at most .* with --launch processes and",
    "d4pg ENV --actors 2 --envs-per-actor 9999999": "--envs-per-actor: expected at most .* with -",
    "d4pg ENV --env-engine envpool --time-limit 9": "--env-engine: expected dm_control with --time",
    "d4pg ENV --env-engine envpool --deterministic": "expected dm_control with --deterministic",
    "d4pg ENV --agent.policy-layers 1000000": "one or more layer sizes from 1 to 8192, got",
    "d4pg ENV --agent.value-min 0 --agent.value-max inf": "value-max: expected a number from -1e",
    "d4pg ENV --agent.value-min 0 --agent.value-max nan": "--agent.value-max: .* got nan",
    "d4pg ENV --agent.value-min 0 --agent.value-max -1": "value-min: expected less than value_max",
    "d4pg ENV --agent.n-step 100000": "--agent.n-step: expected at most 1000, got 100000",
    "d4pg ENV --agent.exploration-sigma 1e9": "expected a number from 0 to 10, got 1000000000.0",
    "d4pg ENV --learner-gpus 999 --launch processes": "--learner-gpus: expected at most .* GPUs",
    "d4pg ENV --learner-gpus 1": "--learner-gpus: expected --launch processes or ray with it",
    "d4pg ENV --address 10.0.0.1:6379": "--address: expected --launch ray, got threads",
    "d4pg ENV --caches 2": "--caches: expected 0 to one per actor, got 2",
    "d4pg ENV --actors 3 --replay-shards 2": "--replay-shards: expected a divisor of 3, .* got 2",
    "d4pg ENV --deterministic --actors 2": "--actors: expected 1 with --deterministic, got 2",
    "d4pg ENV --deterministic --launch processes": "expected threads with --deterministic",
    "d4pg ENV --agent.discount 1.0": "--agent.discount: expected .* got 1.0",
    "d4pg ENV --agent.policy-average 10": "expected 1, or more than 10: .* got 10",
    "d4pg ENV --agent.max-gradient-norm inf": "--agent.max-gradient-norm: .* or None, got inf",
    "d4pg ENV --agent.torso nothere": "--agent.torso: expected mlp, simba, .* got 'nothere'",
    "d4pg ENV --agent.torso simba --agent.policy-layers 8 9": "policy-layers: expected equal",
    "d4pg ENV --agent.torso xqc": "policy-average: expected 1 with the torso xqc, got 2000",
    "d4pg ENV --agent.exploration nothere": "--agent.exploration: expected gaussian, .* 'nothere'",
    "d4pg ENV --pixels --agent.frame-stack 0": "--agent.frame-stack: expected at least 1",
    "d4pg ENV --pixels --agent.replay.chunk-length 0": "--agent.replay.chunk-length: .* got 0",
    "d4pg ENV --evaluation.max-episode-steps 0": "max-episode-steps: expected at least 1, got 0",
    "d4pg ENV --preset papr": "expected default or paper or recurrent or simba or xqc, got papr",
    "d4pg ENV --pixels --preset paper": "--preset: expected default, got paper",
    "d4pg ENV --agent.memory.size 0": "--agent.memory.size: expected 1 to",
    "d4pg ENV --agent.memory.overlap 20": "memory.overlap: expected from 0 to less than",
    "d4pg ENV --agent.memory.burn-in -1": "memory.burn-in: expected a number from 0",
    f"d4pg ENV {LSTM} --agent.torso xqc --agent.policy-average 1": "none with the torso xqc",
    f"d4pg ENV {LSTM} --prefill x": "--agent.memory.core: expected",
    f"d4pg ENV {LSTM} --agent.replay.transitions-per-item 4": "1, because each item is a window",
    "dqn BUTTONS --agent.value-rescaling": "--agent.value-rescaling: expected False",
    "dqn BUTTONS --agent.exploration-epsilon 1.5": "exploration-epsilon: expected a number in",
    "dqn BUTTONS --agent.target-update-period 0": "--agent.target-update-period: expected at least",
    "dqn BUTTONS --agent.max-gradient-norm 0": "max-gradient-norm: expected a positive number",
    "mrq ENV --agent.horizon 2": "--agent.horizon: expected n_step (3) to 1000, got 2",
    "mrq ENV --agent.horizon 1001": "--agent.horizon: expected n_step",
    "mrq ENV --agent.width 10000": "--agent.width: expected 2 to 8192, got 10000",
    "mrq ENV --agent.torso xqc": "--agent.torso: expected mlp or simba",
    "mrq ENV --agent.normalize-observations": "--agent.normalize-observations: expected False",
    "mrq ENV --agent.temperature 0": "--agent.temperature: expected a finite number above 0",
    "impala ENV --agent.vtrace-lambda 1.5": "--agent.vtrace-lambda: expected a number in",
    "impala ENV --agent.queue-size 0": "--agent.queue-size: expected at least 1",
    "impala ENV --agent.max-rho -1": "--agent.max-rho: expected a finite number",
    "impala ENV --agent.torso xqc": "--agent.torso: expected mlp or simba",
    "impala ENV --agent.unroll-length 0": "--agent.unroll-length: expected 1 to 1000",
}
HILL, CLIMBER = (f"tests.rl_replicator.experiments.{name}:{name}" for name in ("hill", "climber"))
PBT = "--scheduler pbt --interval 200 --search"
SWEEP = {
    "": "expected something to train",
    "hil": "expected something to train",
    HILL: "expected --search 'option=expression' at least once",
    f"{HILL} --search 'x=choice(1)'": "two different values or more",
    f"{HILL} --search 'plase=uniform(0,1)'": "Perhaps you meant: --place",
    f"{HILL} --search 'shape.height=uniform(0,1.5)'": "Error parsing --shape.height",
    f"{HILL} --search 'place=uniform(0,1)' --place 3": "either searched or set",
    f"{HILL} --search 'seed=choice(1,2)'": "--search: expected no seed, which",
    f"{HILL} '--search=--place=uniform(0,1)'": "expected 'option=expression', such as 'agent",
    f"{HILL} --search 'place=uniform(0,1)' --seed 3": "expected no --seed",
    f"{HILL} --search 'place=uniform(0,1)' --trials 0": "--trials: expected at least 1",
    f"{HILL} --search 'place=uniform(0,1)' --scheduler pb": "('asha', 'fifo', 'pbt')",
    f"{HILL} --search 'place=uniform(0,1)' --interval 9": "--interval: expected none .* got 9",
    f"{HILL} --search 'place=uniform(0,1)' --shape.wide 1": "Unrecognized options: --shape.wide",
    "d4pg ENV --search 'evaluation.every=choice(1000,9000)'": "got evaluation.every; give --",
    "d4pg ENV --search 'steps=choice(1000,9000)'": "length and the evaluations of a run",
    "resnet --search 'evaluate-epochs=uniform(1.0,2.0)'": "got evaluate-epochs; give",
    f"{CLIMBER} --scheduler pbt --search 'rate=uniform(0,1)'": "--interval: expected at least 1",
    f"{CLIMBER} {PBT} 'rate=uniform(0,1)' --trials 1": "at least 2 with pbt, got 1",
    f"{CLIMBER} {PBT} 'layers=choice(8 8,64)'": "--search layers: expected a real number",
    f"{CLIMBER} {PBT} 'patience=uniform(0,1)'": "--search patience: expected a real number",
    f"d4pg ENV {PBT} 'agent.policy-layers=choice(8,8 8)'": "that a checkpoint fixes",
    f"d4pg ENV {PBT} 'agent.discount=uniform(0.9,0.99)'": "that a checkpoint fixes",
    f"d4pg ENV {PBT} 'checkpoint-seconds=uniform(9,10)'": "that a checkpoint fixes",
}
SUITE = {
    "": "expected a suite (dmc14, dmc-hard, dmc-pixels) or tasks such as",
    "cartpole": "or a task such as cartpole:swingup, got 'cartpole'",
    "dmc14 cartpole:swingup": "expected one suite or a list of tasks",
    "cartpole:swingup cartpole:swingup": "expected each task once",
    "cartpole:swinup": "did you mean cartpole:swingup",
    "dmc14 --seed 3": "expected no --seed after 'rl-replicator suite'",
    "dmc14 --config f.toml": "expected no --config after 'rl-replicator suite'",
    "dmc14 --seeds 0": "--seeds: expected at least 1, got 0",
    "dmc14 --n-stp 3": "Unrecognized options: --n-stp, 3",
    "dmc14 --agent resnet": "--agent: expected an agent, got 'resnet', a learner",
    "dmc14 --anchors none.csv": "--anchors: expected .* got none.csv: ",
}
PLAN = {
    "": "Missing from rl-replicator plan: AGENT",
    "resnet": "expected an agent",
    "d4pg": "--env STR",
    "d4pg ENV --machines 0": "--machines: expected at least 1, got 0",
    "d4pg ENV --cores inf": "--cores: expected a number greater than 0",
    "d4pg ENV --device-speedup -1": "--device-speedup",
    "d4pg ENV --latency-us -1": "--latency-us",
    "d4pg ENV --measure-seconds 0": "--measure-seconds",
    "d4pg ENV --machines 2": "--launch: expected ray on several machines, got threads",
    "d4pg ENV --replicas mesh:data=2": "--replicas: expected a number",
    "d4pg ENV --replicas multi_worker:2": "--launch processes",
    "d4pg ENV --replicas 7": "a multiple of 7 replicas",
    "d4pg ENV --actors 4 --replay-shards 3": "--replay-shards",
    "d4pg ENV --deterministic": "--deterministic",
    "d4pg ENV --config f.toml": "expected no --config after 'rl-replicator plan'",
    "d4pg ENV --macines 2": "Unrecognized options: --macines",
    "d4pg ENV --parts nowhere/parts.json": "--parts: expected a file in a folder",
    "d4pg ENV --parts a-file": "--parts: expected what this version of",
}


@pytest.mark.parametrize(
    ("command", "table"),
    [("", COMMANDS), ("train", TRAIN), ("sweep", SWEEP), ("suite", SUITE), ("plan", PLAN)],
    ids=["commands", "train", "sweep", "suite", "plan"],
)
def test_commands(refused, tmp_path, command, table):
    (tmp_path / "a-file").write_text("...")
    (tmp_path / "to-nothing").symlink_to("nothing")
    before = files(tmp_path)
    for text, expected in table.items():
        text = text.replace("ENV", ENV).replace("BUTTONS", BUTTONS)
        words = shlex.split(text.replace("LONG", "a" * 300))
        found = refused(*filter(None, [command]), *words)
        assert all(part in found for part in expected.split(" .* ")), (text, found)
        assert files(tmp_path) == before, text


@pytest.mark.parametrize("command", ["eval", "video", "train"])
def test_damaged_settings_of_a_run(refused, tmp_path, command):
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    for text in (
        "",
        "[]",
        "{}",
        '{"identity": 3}',
        '{"identity": {}, "trainable": 7}',
        '{"identity": {"config": []}, "trainable": "resnet"}',
        '{"identity": {}, "trainable": "nothing"}',
        '{"identity": {}, "trainable": "resnet", "options": 5}',
        '{"identity": {}, "trainable": "d4pg"}',
        '{"identity": {"env": 1, "agent": {}}, "trainable": "d4pg"}',
        '{"identity": {"env": "cartpole:swingup", "agent": {"from": "the future"}}, '
        '"trainable": "d4pg"}',
    ):
        (tmp_path / "run" / "config.json").write_text(text)
        before = files(tmp_path)
        refused(command, *(("--run-dir",) if command == "train" else ()), "run")
        assert files(tmp_path) == before, text


def test_processes_in_which_libraries_would_fail(command):
    """Each ends in one line, before anything is imported."""
    for setting, expected in (
        ({"PYTHONOPTIMIZE": "2"}, "expected Python with docstrings, which TensorFlow reads, got"),
        ({"PYTHONWARNINGS": "error"}, "expected warnings that are no errors, because Reverb's"),
    ):
        done = command("envs", **setting)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and expected in done.stderr
    for limit, size, expected in (
        (resource.RLIMIT_NOFILE, 32, "at least 128 open files for a process, got 'ulimit -n' 32;"),
        (resource.RLIMIT_AS, 3_000_000 << 10, "than it uses, got 3000000; raise it, or limit a"),
    ):
        few = functools.partial(resource.prlimit, 0, limit, (size, size))
        done = command("envs", preexec_fn=few)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and expected in done.stderr
