"""Exported policies, run by programs that import nothing of this project."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import types
from typing import Literal

import numpy as np
import pytest
import tensorflow as tf
from dm_env.specs import BoundedArray

import environments
from agents import d4pg, dqn, load_policy, mrq, sac, td3
from agents.config import MemoryConfig
from agents.learning.weights import WeightsPart, copy_variables
from agents.policies import exported as exported_policies
from agents.policies.export import export_policy, packages_of
from agents.policies.policy import restore
from agents.runs.options import AgentOptions, PixelAgentOptions
from agents.td3.agent import TD3
from agents.td3.config import TD3Config
from environments import PixelConfig
from environments.flat import frame_of
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.cli import main
from rl_replicator.errors import UsageError
from rl_replicator.exports.model import Card
from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory
from tests.agents.policies import range_fake

pytestmark = pytest.mark.timeout(300)  # Ten policies are exported at first.
ENV = "tests.agents.policies.range_fake:make"
BUTTONS = "tests.environments.discrete_fakes:make_buttons"
OBSERVATIONS = 6
UNIT = np.array([4.0, 0.125])  # Half of the action range.

# Given folders of models with inputs.npz and expected.npz, prints the largest differences, of
# actions as if their range were [-1, 1].
PROGRAM = """
import importlib.util, json, pathlib, sys
import numpy as np

def savedmodel(folder):
    import tensorflow as tf
    call = tf.saved_model.load(str(folder)).signatures["serving_default"]
    return lambda **inputs: {k: v.numpy() for k, v in call(**{
        name: tf.constant(x) for name, x in inputs.items()}).items()}

def tflite(folder):
    import tensorflow as tf
    return tf.lite.Interpreter(str(folder / "model.tflite")).get_signature_runner()

def onnx(folder):
    import onnxruntime
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(zip(names, session.run(None, inputs)))

def numpy(folder):
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(folder / "model.npz").run

found, UNIT = {}, [4.0, 0.125]  # Half of the action range.
for case in map(pathlib.Path, sys.argv[2:]):
    inputs, expected = (dict(np.load(case / name)) for name in ("inputs.npz", "expected.npz"))
    for kind in sys.argv[1].split(","):
        if not (case / kind).exists():
            continue
        outputs = globals()[kind](case / kind)(**inputs)
        assert set(outputs) == set(expected), outputs.keys()
        for name, array in expected.items():
            assert outputs[name].shape == array.shape and outputs[name].dtype == array.dtype
            unit = UNIT if name == "action" else 1
            worst = np.abs((outputs[name].astype(float) - array.astype(float)) / unit).max()
            found[f"{case.name} {kind} {name}"] = float(worst)
ours = ("agents", "environments", "launchpad", "rl_replicator", "sonnet", "reverb")
print(json.dumps({"differences": found, "foreign": sorted({*ours, "tensorflow"} & {*sys.modules})}))
"""


def _config(command, pixels, core):
    kind = command.pixel_config if pixels else command.config
    small = {"critic_layers": (7, 5)} if command is dqn.command else {"policy_layers": (7, 5)}
    small = {"critic_layers": (7,), **small}
    if command is mrq.command:
        small["width"] = 6
    if pixels:
        small |= {"precision": "float32", "feature_size": 6, "encoder": pixels, "discount": 0.9}
    if core != "none":
        small |= {"memory": MemoryConfig(core, 5)}
    return kind(**small)


def make_run(path, command, pixels, wrap=(), env=ENV, core="none", state=(), repeats=None):
    """Writes the directory of a run as training does, with untrained weights."""
    common = {"env": env, "wrap": wrap, "agent": _config(command, pixels, core)}
    common |= {"action_repeat": repeats}
    if pixels:
        frame = PixelConfig(height=24, width=24, state=state)
        options = PixelAgentOptions(frame=frame, **common)
    else:
        options = AgentOptions(**common)
    run = RunDirectory(path)
    path.mkdir()
    # By import path, which needs no registration.
    unregistered = (sac.command, dqn.command, mrq.command)
    name = f"agents.{command.name}:command" if command in unregistered else command.name
    run.describe(name, options.identity, dataclasses.asdict(options) | {"run_dir": None})
    agent = command.make_agent(options.agent, options.task.spec())
    tf.random.set_seed(1)  # Of the initial weights.
    networks = agent.make_evaluation_policy(WeightsPart()).networks
    random = tf.random.Generator.from_seed(3)
    for network in networks.values():
        for variable in network.variables:  # Like trained ones, neither zeros nor ones.
            variable.assign_add(tf.cast(0.1 * random.normal(variable.shape), variable.dtype))
    arrays = copy_variables(networks, [n for n, network in networks.items() if network.variables])
    state = {"environment_steps": 1000, "learner_steps": 400}
    Checkpointer(run.checkpoints).save(
        400, {"weights": WeightsPart(arrays), "progress": JsonPart(lambda: state, lambda _: None)}
    )
    writer = MetricWriter(path, "environment_steps")
    row = {"episode_return": 8.25, "episode_return_min": 7.0, "episode_return_max": 9.0}
    writer.write(
        "evaluator", 900, {**row, "episode_return": 1.0, "episodes": 2, "learner_steps": 300}
    )
    writer.write("evaluator", 1000, {**row, "episodes": 5, "learner_steps": 400})
    writer.close()
    return path


def _expected(run_dir):
    """Returns inputs for the exported model, and the loaded policy's outputs for them."""
    policy = load_policy(run_dir)
    environment = policy.make_environment(seed=2)
    flat = getattr(environment, "wrapped", environment) if policy.task.pixels else environment
    observations, stacks, states, actions = [], [], [], []
    timestep = environment.reset()
    policy.reset()
    stack = None
    if policy.task.pixels:
        stack = np.concatenate([frame_of(timestep.observation)] * 3, -1)
    for _ in range(OBSERVATIONS):
        states.append(policy.actor.states[0].copy())
        action = policy.act(timestep.observation)
        observations.append(timestep.observation)
        stacks.append(stack)
        stack = frame_of(policy.actor.last_observation)
        own = flat.actions.own(action)
        actions.append(own if policy.agent.is_discrete else own.astype(np.float32))
        timestep = environment.step(action)
    frames = [frame_of(observation) for observation in observations]
    inputs, outputs = {"observation": np.stack(frames)}, {"action": np.stack(actions)}
    if policy.task.pixels is not None:
        inputs["stack"] = np.stack(stacks)
        outputs["next_stack"] = np.stack([*stacks[1:], stack])
        if policy.task.pixels.state:
            inputs["vector"] = np.stack([each["vector"] for each in observations])
    if states[0].size:
        inputs["state"] = np.stack(states)
        outputs["next_state"] = np.stack([*states[1:], policy.actor.states[0]])
    return inputs, outputs


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Folders, one for each case, with the run and its exports."""
    root = tmp_path_factory.mktemp("exported")
    cases = {
        "td3": (td3.command, None, ("onnx", "numpy")),
        "sac": (sac.command, None, ("onnx", "numpy")),
        "dqn": (dqn.command, None, ("savedmodel", "tflite", "onnx", "numpy")),
        "mrq": (mrq.command, None, ("onnx", "numpy")),
        "mrq_pixels": (mrq.command, "small", ("onnx", "numpy")),
        "pixels": (d4pg.command, "small", ("onnx", "numpy")),
        "both": (td3.command, "small", ("savedmodel", "tflite", "onnx", "numpy")),
        "residual": (d4pg.command, "impala", ("onnx", "numpy")),
        "lstm": (d4pg.command, None, ("savedmodel", "tflite", "onnx", "numpy")),
        "gru": (d4pg.command, "small", ("onnx", "numpy")),
    }
    for name, (command, pixels, kinds) in cases.items():
        (root / name).mkdir()
        env = BUTTONS if name in ("dqn", "mrq") else ENV
        core = name if name in ("lstm", "gru") else "none"
        state = ("height", "arm") if name in ("both", "gru") else ()
        run_dir = make_run(root / name / "run", command, pixels, env=env, core=core, state=state)
        inputs, expected = _expected(run_dir)
        np.savez(root / name / "inputs.npz", **inputs)
        np.savez(root / name / "expected.npz", **expected)
        for kind in kinds:
            words = ["export", run_dir, "--format", kind, "--out", root / name / kind]
            assert main.main([str(word) for word in words]) == 0
    return root


@pytest.mark.parametrize(
    ("kinds", "allowed", "count"),
    [
        ("numpy,onnx", [], 2 * (4 * 1 + 5 * 2 + 3)),
        ("savedmodel,tflite", ["tensorflow"], 2 * (1 + 2 + 2)),
    ],
)
def test_other_programs_get_the_same_actions(exported, tmp_path, kinds, allowed, count):
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kinds, *sorted(map(str, exported.iterdir()))],
        cwd=tmp_path,
        env=clean | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["foreign"] == allowed
    assert len(answer["differences"]) == count
    wrong = {name: worst for name, worst in answer["differences"].items() if not worst <= 1e-6}
    assert wrong == {}, answer["differences"]


def test_an_exported_policy_remembers_an_episode_and_forgets_it(exported):
    inputs, expected = (np.load(exported / "lstm" / f"{x}.npz") for x in ("inputs", "expected"))
    assert np.abs(inputs["state"][1:]).max(axis=1).min() > 0.01  # It has something to forget.
    policy = exported_policies.load(exported / "lstm" / "numpy")
    for _ in range(2):
        policy.model.reset()
        for observation, action in zip(inputs["observation"], expected["action"], strict=True):
            got = policy.model.act(observation)
            np.testing.assert_allclose(got / UNIT, action / UNIT, atol=1e-6)
    card = (exported / "lstm" / "numpy" / "README.md").read_text()
    assert "Input `state`: [B, K]" in card


def test_discrete_actions_are_those_of_the_environment(exported):
    """Of two dials, from 0 and from 5, and legal; an exported policy plays by them."""
    card = (exported / "dqn" / "numpy" / "README.md").read_text()
    assert "| observation | float32 vector: number 0:1, action_mask 1:7 |" in card
    assert "| action | int64 [2], within [0, 1], [5, 7] |" in card
    policy = exported_policies.load(exported / "dqn" / "numpy")
    with policy.task.make(seed=3) as environment:
        actor = policy.actor()
        timestep = environment.reset()
        while not timestep.last():
            timestep = environment.step(actor.select_action(timestep.observation))


def test_an_exported_policy_of_frames_and_state_plays(exported):
    card = (exported / "both" / "numpy" / "README.md").read_text()
    assert "frame, uint8 [24, 24, 3], after every 2 environment steps" in card
    assert "is repeated; state: height, arm |" in card
    inputs, expected = (np.load(exported / "both" / f"{x}.npz") for x in ("inputs", "expected"))
    policy = exported_policies.load(exported / "both" / "numpy")
    with policy.task.make(seed=2) as environment:
        actor, timestep = policy.actor(), environment.reset()
        np.testing.assert_array_equal(timestep.observation["vector"], inputs["vector"][0])
        action = actor.select_action(timestep.observation)
        own = environment.wrapped.actions.own(action)
        np.testing.assert_allclose(own, expected["action"][0], atol=1e-5)
    trained = load_policy(exported / "both" / "run")
    with pytest.raises(TypeError, match=r"one array \[5\] of float32, got a NoneType"):
        trained.act({"pixels": inputs["observation"][0]})


def test_a_number_of_the_action_that_is_always_the_same():
    class Model:
        def act(self, observation):
            return np.array([1.0, 0.25])

    spec = BoundedArray((2,), np.float64, [-3.0, 0.25], [5.0, 0.25])
    assert exported_policies.ExportedActor(Model(), spec).select_action(None).tolist() == [0, 0]


def test_an_exported_policy_of_pictures_plays_another_task(exported):
    policy = exported_policies.load(exported / "pixels" / "numpy")
    of_pictures = "tests.agents.policies.range_fake:pictures"
    trained = dataclasses.replace(policy.task, name=of_pictures)
    actor = dataclasses.replace(policy, task=trained).actor()
    with policy.task.make(seed=1) as environment:
        action = actor.select_action(environment.reset().observation)
    assert action.shape == (2,) and (np.abs(action) <= 1).all()


def test_the_card_says_what_it_is(exported):
    card = (exported / "td3" / "numpy" / "README.md").read_text()
    for line in (
        "# td3 on " + ENV,
        "| environment steps | 1,000 |",
        "| return | 8.25 (min 7, max 9, 5 episodes) |",
        "| observation | float32 vector: arm 0:4, height 4:5 |",
        "| action | float32 [1, 2], within [-3, 5], [0, 0.25] |",
        '"policy_layers"',
    ):
        assert line in card, card
    assert "mujoco" not in card  # The task does not use it.
    assert "licence" not in card  # Only the owner can choose it.
    pixels = (exported / "pixels" / "onnx" / "README.md").read_text()
    assert "uint8 [24, 24, 3]" in pixels and "float32, whatever they did in training" in pixels


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cartpole:swingup", ["dm-control", "mujoco"]),
        ("gym:HalfCheetah-v5", ["gymnasium", "mujoco"]),
        ("environments.fakes:target", []),
    ],
)
def test_a_card_names_the_packages_of_its_task(name, expected):
    with environments.make(name, seed=1) as environment:
        packages = packages_of(environment)
    card = json.loads(Card("A policy", {}, "", {}, packages).json())
    assert [name for name in card["versions"] if name in packages] == expected


def test_the_numpy_model_keeps_the_frames_of_an_episode(exported):
    sys.path.insert(0, str(exported / "pixels" / "numpy"))
    try:
        import model as standalone
    finally:
        del sys.path[0]
    model = standalone.Model(exported / "pixels" / "numpy" / "model.npz")
    inputs = np.load(exported / "pixels" / "inputs.npz")["observation"]
    expected = np.load(exported / "pixels" / "expected.npz")["action"]
    for _ in range(2):  # The second episode does not depend on the first.
        model.reset()
        for observation, action in zip(inputs[:3], expected, strict=False):
            np.testing.assert_allclose(model.act(observation) / UNIT, action / UNIT, atol=1e-6)
    assert model.card["task"] == ENV
    with pytest.raises(ValueError, match=r"expected observation of shape \[B, 24, 24, 3\]"):
        model.run(observation=np.zeros((1, 3)), stack=np.zeros((1, 3)))
    model.reset()
    for wrong, got in (
        (inputs[0] / 255, "float64"),
        (inputs[0].astype(int) - 256, "int64 from -256 to "),
    ):
        match = f"expected observation of uint8 from 0 to 255, got {got}.*; scale and convert it"
        with pytest.raises(ValueError, match=match):
            model.act(wrong)
    action = model.act(inputs[0].tolist())  # The stack has no wrong frames.
    np.testing.assert_allclose(action / UNIT, expected[0] / UNIT, atol=1e-6)
    model = standalone.Model(exported / "td3" / "numpy" / "model.npz")
    with pytest.raises(TypeError, match=r"expected one array \[5\], .* vector: arm 0:4, height"):
        model.act({"arm": np.zeros(4), "height": np.zeros(1)})


def test_a_loaded_policy_takes_frames_of_its_environment_alone(exported):
    policy = load_policy(exported / "pixels" / "run")
    frame = np.load(exported / "pixels" / "inputs.npz")["observation"][0]
    policy.reset()
    action = policy.act(frame)
    for wrong in (np.concatenate([frame, frame]), frame / 255, frame.astype(np.int64)):
        got = rf"got \[{len(wrong)}, 24, 3\] of {wrong.dtype}; use policy.make_environment"
        with pytest.raises(ValueError, match=rf"one array \[24, 24, 3\] of uint8, {got}"):
            policy.act(wrong)
    np.testing.assert_array_equal(policy.act(frame), action)  # The stack has no wrong frames.
    own = policy.adapt(range_fake.make(seed=2))
    np.testing.assert_array_equal(own.reset().observation, frame)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "there"), "/there, which exists; choose another"),
        (("--out", "new", "--best"), "^exporting the best checkpoint of .*best, found none yet"),
        (("--out", "new", "--format", "pickle"), "invalid choice 'pickle' for argument '--format'"),
        ((), "--out PATH"),
    ],
)
def test_bad_input_writes_nothing(exported, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main.main(["export", str(exported / "td3" / "run"), *words]) == 2
    assert re.search(message, capsys.readouterr().err, re.DOTALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_a_model_of_a_wrapped_task_has_the_form_of_the_agent(tmp_path):
    """A wrapper may change observations and actions, as this one does."""
    wrap = "tests.agents.policies.range_fake:Changed"
    run_dir = make_run(tmp_path / "run", td3.command, None, (wrap,), repeats=2)
    out = tmp_path / "out"
    assert main.main(["export", str(run_dir), "--format", "numpy", "--out", str(out)]) == 0
    policy, loaded = load_policy(run_dir), exported_policies.load(out)
    environment = policy.make_environment(seed=2)
    observation = environment.reset().observation
    own = policy.adapt(range_fake.make(seed=2), seed=2).reset().observation
    np.testing.assert_array_equal(own, observation)
    expected = policy.act(observation)
    np.testing.assert_allclose(loaded.model.act(observation), expected, atol=1e-6)
    actor = loaded.actor()
    np.testing.assert_allclose(actor.select_action(observation), expected, atol=1e-6)
    card = (out / "README.md").read_text()
    assert f"| wrappers | {wrap} |" in card and "| action | float32 [2], within [-1, 1] |" in card
    assert ", after every 2 environment steps, in which the action is repeated |" in card
    assert "the wrapped environment as the agent sees it" in card


@dataclasses.dataclass(frozen=True)
class HalfConfig(TD3Config):
    """Trains in bfloat16."""

    precision: Literal["float32", "bfloat16"] = "bfloat16"


class Scaled(TD3):
    """Has an argument besides config and spec."""

    def __init__(self, config, environment_spec, scale):
        super().__init__(config, environment_spec)
        self.scale = scale

    def greedy_action(self, outputs):
        return self.scale * outputs


def make_scaled(config, environment_spec):
    return Scaled(config, environment_spec, 0.5)


def test_an_agent_of_a_function_that_trains_in_bfloat16(tmp_path, caplog):
    factory = f"{__name__}:make_scaled"
    command = dataclasses.replace(td3.command, config=HalfConfig, factory=factory)
    run_dir = make_run(tmp_path / "run", command, None)
    policy = restore(RunDirectory(run_dir), command)
    environment = policy.make_environment(seed=2)
    observation = environment.reset().observation
    model = command.exported(run_dir, best=False, license_name="MIT")
    action = model.function(tf.constant(observation[None]))["action"][0]
    np.testing.assert_allclose(
        action, environment.actions.own(policy.act(observation)), rtol=1e-5, atol=1e-6
    )
    assert not caplog.records
    new = RunDirectory(tmp_path / "new")  # It has no metrics yet.
    new.path.mkdir()
    shutil.copy(run_dir / "config.json", new.path)
    card = export_policy(dataclasses.replace(policy, learner_steps=0), command, new, None).card
    assert card.facts["return"] == "not evaluated; `rl-replicator eval RUN_DIR` measures it"
    assert f"the policy is untrained: the learner of {new.path} has taken 0 steps" in caplog.text


class Other:
    """Stands for an agent that has only what `agents.agent.Agent` requires."""


def test_an_agent_that_does_not_say_how_it_acts_is_named():
    policy = types.SimpleNamespace(agent=Other())
    with pytest.raises(UsageError, match="with make_evaluation_policy, .* got Other; subclass"):
        export_policy(policy, td3.command, RunDirectory("run"), None)
