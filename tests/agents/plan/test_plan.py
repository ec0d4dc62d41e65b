"""`rl-replicator plan`: the arithmetic of the bound, with parts that are easy to add up."""

import dataclasses
import json
import re

import pytest

from agents.cli import plan
from agents.nodes.run_plan import Replicas
from agents.plan.bound import Deployment, Hardware, deploy, predict
from agents.plan.parts import Parts
from agents.runs.options import AgentOptions
from rl_replicator.cli import trainables
from rl_replicator.errors import ConfigError

# An action takes 1 ms, a learner step of 100 transitions 2 ms; everything else takes no time.
FREE = ("insert_server", "sample_learner", "sample_thread", "sample_server", "fetch_actor")
PARTS = Parts(
    settings={},
    machine="tests",
    environment=0.4e-3,
    policy_call=0.3e-3,
    policy_row=0.1e-3,
    insert_thread=0.2e-3,
    insert_actor=0.2e-3,
    insert_bytes=1000.0,
    sample_bytes=500.0,
    step_call=1e-3,
    step_row=10e-6,
    step_threads=1.0,
    weight_bytes=1e6,
    gradient_bytes=1e6,
    episode_actions=100.0,
    **dict.fromkeys((*FREE, "fetch_learner", "call"), 0.0),
)
RUN = Deployment(
    actors=1,
    envs_per_actor=1,
    in_threads=False,
    replicas=1,
    learner_processes=1,
    replay_shards=1,
    caches=0,
    batch=100,
    samples_per_insert=25.0,
    action_repeat=1,
)
ALONE = Hardware(cores=4.0)
CLUSTER = Hardware(machines=8, cores=4.0)
ENV = ("--env", "environments.fakes:target")


def rate(parts=PARTS, run=RUN, hardware=ALONE, **changes):
    return predict(parts, dataclasses.replace(run, **changes), hardware)


def resource(prediction, name):
    (found,) = [one for one in prediction.resources if one.name == name]
    return found


def limit(prediction, name):
    return resource(prediction, name).limit


def test_actors_and_learner_hold_each_other_back():
    prediction = rate(action_repeat=2)
    assert prediction.resources[0].name == "the actors"
    assert prediction.actions == pytest.approx(1000)
    assert prediction.environment_steps == pytest.approx(2000)
    assert prediction.learner_steps == pytest.approx(250)  # 25 samples an action, 100 a step.
    # Per action: 1 ms for acting and a quarter of a step's 2 ms, on four processors.
    assert limit(prediction, "the processors") == pytest.approx(4 / 1.5e-3)
    prediction = rate(actors=16)
    assert prediction.resources[0].name == "the learner's steps"
    assert prediction.learner_steps == pytest.approx(500)
    # Several environments share a call of the policy: 0.4 + 0.3 / 3 + 0.1 + 0.2 ms.
    assert rate(envs_per_actor=3).actions == pytest.approx(1 / 0.8e-3)


def test_replicas_divide_the_batch_and_repeat_the_rest_of_a_step():
    # Each of the two takes 1 ms + 50 x 10 us, in parallel.
    assert limit(rate(replicas=2), "the learner's steps") == pytest.approx(4 / 1.5e-3)
    # Processor time per action: 1 ms, and a quarter of 3 ms.
    assert limit(rate(replicas=2), "the processors") == pytest.approx(4 / 1.75e-3)
    # On one processor they take turns: 3 ms.
    narrow = rate(replicas=2, hardware=Hardware(cores=1.0))
    assert limit(narrow, "the learner's steps") == pytest.approx(4 / 3e-3)


def test_threads_share_one_lock_and_an_evaluator_takes_one_thread():
    # 1 ms an action, whatever the number of actors.
    assert rate(actors=8, in_threads=True).actions == pytest.approx(1000)
    # Half an episode of 100 actions of 0.8 ms is due for every 100 steps.
    evaluated = rate(in_threads=True, evaluation=0.5 / 100)
    assert evaluated.actions == pytest.approx(1 / 1.4e-3)
    for most, seconds in ((1000, 8e-3), (5, 0.4e-3)):  # Whole episodes, or those cut off.
        found = rate(evaluation=0.1, episode_actions=most)
        assert resource(found, "the processors").evaluation == pytest.approx(seconds)
    # Evaluations that take 80 ms per action: the evaluator is one of nine threads.
    always = {"actors": 8, "evaluation": 1.0}
    assert rate(in_threads=True, **always).actions == pytest.approx(1000 * 8 / 9)
    # An action takes 1.5 ms on the processors, of which the evaluator leaves four of five.
    processors = limit(rate(hardware=Hardware(cores=5.0), **always), "the processors")
    assert processors == pytest.approx(4 / 1.5e-3)


def test_replay_servers_share_the_transitions():
    # Each action takes 25 samples of 40 us and an insert of 1 ms; a server uses two processors.
    parts = dataclasses.replace(PARTS, insert_server=1e-3, sample_server=40e-6)
    hardware = dataclasses.replace(CLUSTER, server_cores=2.0)
    for shards in (1, 4):
        prediction = rate(parts, actors=16, replay_shards=shards, hardware=hardware)
        assert limit(prediction, "the replay servers") == pytest.approx(shards * 2 / 2e-3)


def test_accelerators_average_their_gradients():
    # A step of 1.5 ms, ten times as fast; then 2 x 1/2 x 1 MB over 8 Gbit/s: one millisecond.
    hardware = Hardware(cores=4.0, device_speedup=10.0, link_gbps=8.0)
    prediction = rate(replicas=2, hardware=hardware)
    assert limit(prediction, "the learner's steps") == pytest.approx(4 / 1.15e-3)
    assert limit(prediction, "the processors") == pytest.approx(4 / 1e-3)
    # Between four machines: 2 x 3/4 x 1 MB over 16 Gbit/s, and 6 messages of 100 us; the step of 25
    # transitions takes 0.125 ms.
    hardware = dataclasses.replace(hardware, machines=8, network_gbps=16.0, latency_us=100.0)
    prediction = rate(replicas=4, learner_processes=4, hardware=hardware)
    assert limit(prediction, "the learner's steps") == pytest.approx(4 / (0.125e-3 + 1.35e-3))


def test_the_network_and_caches():
    # 8 Gbit/s are 1 GB/s. An action inserts 1000 bytes and samples 25 x 500; every 250th fetches
    # a megabyte.
    hardware = dataclasses.replace(CLUSTER, network_gbps=8.0)
    prediction = rate(hardware=hardware)
    assert limit(prediction, "the network into the replay") == pytest.approx(1e9 / 1000)
    assert limit(prediction, "the network out of the replay") == pytest.approx(1e9 / 12_500)
    assert limit(prediction, "the network into the learner") == pytest.approx(1e9 / 12_500)
    assert limit(prediction, "the network out of the learner") == pytest.approx(1e9 * 250 / 1e6)
    # Each of the two caches fetches the weights five times a second.
    cached = rate(actors=2, caches=2, hardware=hardware)
    out = resource(cached, "the network out of the learner")
    assert out.load(1e6) == pytest.approx(10 * 1e6 / 1e9)
    assert limit(cached, "the network out of the caches") == pytest.approx(2 * 1e9 * 250 / 1e6)
    # Every 250th action fetches the weights, which takes 50 ms to serve: 0.2 ms per action.
    parts = dataclasses.replace(PARTS, fetch_learner=50e-3)
    learners = "the processors of the learner's machines"
    alone, cached = (rate(parts, RUN, CLUSTER, actors=32, caches=caches) for caches in (0, 2))
    assert limit(alone, "the processors") == pytest.approx(8 * 4 / 1.7e-3)
    assert limit(alone, learners) == pytest.approx(4 / 0.7e-3)
    # The caches' own ten fetches a second take half a processor.
    assert limit(cached, "the processors") == pytest.approx((8 * 4 - 0.5) / 1.7e-3)
    assert limit(cached, learners) == pytest.approx((4 - 0.5) / 0.5e-3)


def parsed(*words):
    """The options of a run of D4PG."""
    return trainables.load("d4pg").parse(words, {})


def test_it_plans_what_the_run_would_do():
    words = ("--env", "a:b", "--replicas", "multi_worker:8", "--launch", "ray")
    for gpus, replicas in ((("--learner-gpus", "4"), 32), ((), 8)):
        run = parsed(*words, *gpus)
        found = deploy(run, Hardware(machines=8))
        assert (found.replicas, found.learner_processes) == (replicas, 8)
        in_run = Replicas.parse(run.replicas, run.launch, run.learner_gpus or 0)
        assert in_run.num_replicas == replicas
    pixels = ("--env", "cartpole:balance", "--pixels", "--action-repeat", "8")
    run = parsed(*pixels, "--evaluation.max-episode-steps", "100")
    assert deploy(run, Hardware()).episode_actions == 13
    with pytest.raises(ConfigError, match="is an agents.config.OffPolicyConfig, got D4PG: a plan"):
        deploy(AgentOptions(env="a:b", agent=dataclasses.make_dataclass("D4PG", [])()), Hardware())
    with pytest.raises(ConfigError, match="--offline: expected none for a plan, got a/b-v0"):
        deploy(parsed("--env", "a:b", "--offline", "a/b-v0"), Hardware())


@pytest.fixture
def parts_file(tmp_path, monkeypatch):
    """Parts that were measured before, as a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    settings = plan.measured_settings("d4pg", parsed(*ENV))
    dataclasses.replace(PARTS, settings=settings).save(tmp_path / "parts.json")
    return ("d4pg", *ENV, "--parts", "parts.json")


def test_it_names_what_saturates_and_what_helps(parts_file, capsys):
    # A step of 100 actions takes 2 ms on one thread of 16: 500 a second, and as many actions.
    cluster = ("--actors", "64", "--launch", "ray", "--machines", "8", "--cores", "16")
    agent = ("--agent.global-batch-size", "100", "--agent.replay.samples-per-insert", "100")
    agent += ("--agent.replay.min-size", "1000", "--steps", "30000")
    assert plan.plan([*parts_file, *cluster, *agent]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "measured on tests" in lines[0]
    where = "64 actors of 1 environment, 1 replica, 1 replay server, 8 machines of 16 processors"
    assert lines[lines.index(f"predicted at most for {where}") + 1] == (
        "  500 environment steps/s, 500.0 learner steps/s, 1.0 minutes to 30,000 environment steps"
    )
    moved = "--replicas, --device-speedup, fewer --agent.replay.samples-per-insert"
    assert f"saturates first: the learner's steps; what moves it: {moved}" in lines
    assert any("--network-gbps 10" in line for line in lines)
    (used,) = [line for line in lines if line.startswith("  100%")]
    assert used.split(maxsplit=4)[2:] == ["the", "learner's", f"steps{' ' * 21} {moved}"]
    # 64 caches fetch a megabyte each five times a second: 2.56 Gbit/s.
    caches = ("--caches", "64", "--network-gbps", "1.5", "--replicas", "multi_worker:2")
    assert plan.plan([*parts_file, *cluster, *caches]) == 0
    text = capsys.readouterr().out
    assert "saturates first: the network out of the learner; what moves it: --network-" in text
    assert "\n  0 environment steps/s, 0.0 learner steps/s, forever to" in text


def test_parts_of_other_settings_are_refused(parts_file):
    for words, name, ours, theirs in (
        (("--agent.policy-layers", "8"), "agent.policy-layers", r"\[8\]", r"\[256, 256"),
        (("--env", "cartpole:balance"), "env", "cartpole:balance", "environments.fakes:target"),
    ):
        expected = f"measured with {name} {ours}, got parts.json, measured with {theirs}"
        with pytest.raises(ConfigError, match=expected):
            plan.plan([*parts_file, *words])
    heavy = parsed("--env", "gym:Pendulum-v1", "--env-options", '{"g": 99}')
    assert plan.measured_settings("d4pg", heavy)["env"] == 'gym:Pendulum-v1{"g": 99}'


@pytest.mark.slow
def test_everything_is_measured(tmp_path, monkeypatch, capsys):
    """A tiny agent on real tables; no figure is compared with a clock."""
    monkeypatch.chdir(tmp_path)
    words = ("--agent.policy-layers", "6", "--agent.critic-layers", "7", "--agent.num-atoms", "11")
    words += ("--agent.global-batch-size", "8", "--agent.steps-per-call", "2")
    # This table's own limiter would block after a few rows. A single server would need size 16.
    words += ("--agent.replay.min-size", "15", "--agent.replay.samples-per-insert", "10")
    words += ("--agent.replay.priority-exponent", "0.6", "--replay-shards", "2", "--actors", "2")
    words += ("--measure-seconds", "1")
    words = ("--env", "environments.fakes:chain", *words)
    assert plan.plan(["d4pg", *words, "--parts", "p.json"]) == 0
    printed = capsys.readouterr().out
    settings = plan.measured_settings("d4pg", parsed(*words[:-2]))
    parts = Parts.load(tmp_path / "p.json", settings)
    for name, figure in dataclasses.asdict(parts).items():
        # Differences between measurements may be zero.
        may_vanish = re.match("policy_|step_call|step_row|insert_thread|insert_actor", name)
        if isinstance(figure, float):
            assert 0 <= figure < float("inf") and (figure > 0 or may_vanish), name
    # The chain has observations of 2 numbers, actions of 1, and episodes of 10 actions.
    policy = 4 * ((2 * 6 + 6) + (6 + 6) + (6 * 1 + 1))  # Two layers, and LayerNorm.
    critic = 4 * ((3 * 7 + 7) + (7 + 7) + (7 * 11 + 11))
    assert (parts.episode_actions, parts.weight_bytes) == (10, policy)
    assert parts.gradient_bytes == policy + critic
    # A row of 2 + 1 + 1 + 1 + 2 float32, and its overhead on the wire.
    assert parts.insert_bytes < 2000 and parts.sample_bytes < 4000
    assert "measuring d4pg on environments.fakes:chain" in printed and "saturates" in printed


@pytest.mark.slow
def test_frames_are_measured_too(tmp_path, monkeypatch, capsys):
    """Their items are longer than the episodes, of 10 actions: windows end in the middle of one."""
    monkeypatch.chdir(tmp_path)
    frames = ("--pixels", "--frame.height", "24", "--frame.width", "24")
    frames += ("--agent.feature-size", "4")
    sizes = ("--agent.policy-layers", "6", "--agent.critic-layers", "7", "--agent.frame-stack", "2")
    replay = ("--agent.n-step", "1", "--agent.replay.transitions-per-item", "16")
    small = ("--agent.global-batch-size", "8", "--measure-seconds", "1", "--parts", "p.json")
    assert plan.plan(["d4pg", *ENV, *frames, *sizes, *replay, *small]) == 0
    parts = json.loads((tmp_path / "p.json").read_text())
    assert parts["insert_bytes"] > 0 and parts["sample_bytes"] > 0
    assert parts["settings"]["frame.height"] == 24 and "saturates" in capsys.readouterr().out
