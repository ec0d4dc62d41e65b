"""The arithmetic of the model, with parts that are easy to add up."""

import dataclasses
from functools import partial

import pytest

from agents.d4pg.config import D4PGConfig
from agents.plan.bound import best_changes, predict
from agents.plan.command import is_accepted
from agents.plan.deployment import Deployment, Hardware
from agents.sac.config import SACConfig
from tests.agents.plan.parts import PARTS

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


def rate(parts=PARTS, run=RUN, hardware=ALONE, **changes):
    return predict(parts, dataclasses.replace(run, **changes), hardware)


def limit(prediction, name):
    (resource,) = [resource for resource in prediction.resources if resource.name == name]
    return resource.limit


def test_one_actor_takes_an_action_a_millisecond():
    prediction = rate(action_repeat=2)
    assert prediction.resources[0].name == "the actors"
    assert prediction.actions == pytest.approx(1000)
    assert prediction.environment_steps == pytest.approx(2000)
    assert prediction.learner_steps == pytest.approx(250)  # 25 samples an action, 100 a step.
    # Per action: 1 ms for acting and a quarter of a step's 2 ms, on four processors.
    assert limit(prediction, "the processors") == pytest.approx(4 / 1.5e-3)
    assert limit(prediction, "the learner's steps") == pytest.approx(4 / 2e-3)


def test_several_environments_share_a_call_of_the_policy():
    # 0.4 + 0.3 / 3 + 0.1 + 0.2 ms.
    assert rate(envs_per_actor=3).actions == pytest.approx(1 / 0.8e-3)


def test_the_learner_holds_the_actors_back():
    prediction = rate(actors=16)
    assert prediction.resources[0].name == "the learner's steps"
    assert prediction.learner_steps == pytest.approx(500)
    assert prediction.actions == pytest.approx(2000)


def test_replicas_divide_the_batch_and_repeat_the_rest_of_a_step():
    # Each of the two takes 1 ms + 50 x 10 us, in parallel.
    assert limit(rate(replicas=2), "the learner's steps") == pytest.approx(4 / 1.5e-3)
    # Processor time per action: 1 ms, and a quarter of 3 ms.
    assert limit(rate(replicas=2), "the processors") == pytest.approx(4 / 1.75e-3)
    # On one processor they take turns: 3 ms.
    narrow = Hardware(cores=1.0)
    assert limit(rate(replicas=2, hardware=narrow), "the learner's steps") == pytest.approx(
        4 / 3e-3
    )


def test_threads_share_one_lock():
    # 1 ms an action, whatever the number of actors.
    assert rate(actors=8, in_threads=True).actions == pytest.approx(1000)
    # Half an episode of 100 actions of 0.8 ms is due for every 100 steps.
    evaluated = rate(in_threads=True, evaluation=0.5 / 100)
    assert evaluated.actions == pytest.approx(1 / 1.4e-3)


def test_evaluations_take_the_processors_for_whole_episodes_or_those_that_are_cut_off():
    """An episode of 100 actions of 0.8 ms each is due for every ten actions of the actors."""

    def demand(**changes):
        (resource,) = [r for r in rate(**changes).resources if r.name == "the processors"]
        return resource.evaluation

    assert demand(evaluation=0.1) == pytest.approx(8e-3)
    assert demand(evaluation=0.1, episode_actions=1000) == pytest.approx(8e-3)
    assert demand(evaluation=0.1, episode_actions=5) == pytest.approx(0.4e-3)


def test_an_evaluator_that_cannot_keep_up_takes_one_thread():
    """Evaluations take 80 ms per action, far more than everything else."""
    always = {"actors": 8, "evaluation": 1.0}
    # The evaluator is one of nine threads that share the lock; an action takes 1 ms.
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


def test_bytes_on_the_network():
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
    (out,) = [r for r in cached.resources if r.name == "the network out of the learner"]
    assert out.load(1e6) == pytest.approx(10 * 1e6 / 1e9)
    assert limit(cached, "the network out of the caches") == pytest.approx(2 * 1e9 * 250 / 1e6)


def test_caches_take_the_processors_in_place_of_the_learner():
    # Every 250th action fetches the weights, which takes 50 ms to serve: 0.2 ms per action.
    parts = dataclasses.replace(PARTS, fetch_learner=50e-3)
    run = dataclasses.replace(RUN, actors=32)
    learners = "the processors of the learner's machines"
    alone, cached = (rate(parts, run, CLUSTER, caches=caches) for caches in (0, 2))
    assert limit(alone, "the processors") == pytest.approx(8 * 4 / 1.7e-3)
    assert limit(alone, learners) == pytest.approx(4 / 0.7e-3)
    # The caches' own ten fetches a second take half a processor.
    assert limit(cached, "the processors") == pytest.approx((8 * 4 - 0.5) / 1.7e-3)
    assert limit(cached, learners) == pytest.approx((4 - 0.5) / 0.5e-3)
    busy = dataclasses.replace(run, samples_per_insert=1.0)
    changes = best_changes(parts, busy, ALONE, lambda changed: True, most=9)
    assert not any(change.option.startswith("--caches") for change in changes)


@pytest.mark.parametrize(
    "run",
    [
        RUN,
        dataclasses.replace(RUN, actors=64, samples_per_insert=400),
        dataclasses.replace(RUN, actors=8, evaluation=0.1),
    ],
)
@pytest.mark.parametrize("hardware", [ALONE, CLUSTER, Hardware(8, 4.0, device_speedup=20.0)])
def test_more_never_predicts_less(run, hardware):
    parts = dataclasses.replace(PARTS, insert_server=1e-4, sample_server=1e-5, sample_learner=1e-5)
    before = predict(parts, run, hardware)
    assert all(resource.limit >= before.actions for resource in before.resources)
    assert before.resources[0].load(before.actions) == pytest.approx(1)
    more = [(dataclasses.replace(run, actors=2 * run.actors), hardware)]
    more += [
        (run, dataclasses.replace(hardware, **{name: 2 * value}))
        for name, value in dataclasses.asdict(hardware).items()
        if value is not None and name != "latency_us"
    ]
    for changed_run, changed_hardware in more:
        assert predict(parts, changed_run, changed_hardware).actions >= before.actions
    # A part that takes longer never makes a run faster.
    for name in ("environment", "policy_row", "insert_server", "sample_server", "step_row"):
        slower = dataclasses.replace(parts, **{name: 2 * getattr(parts, name)})
        assert predict(slower, run, hardware).actions <= before.actions


def test_changes_relieve_the_bottleneck():
    # One actor: 1000 actions/s. Two actors: 2000, the limit of the learner's steps.
    (first, *others) = best_changes(PARTS, RUN, ALONE, lambda run: True)
    assert first.option == "--actors 2"
    assert first.gain == pytest.approx(2)
    assert all(change.gain <= 2 for change in others)
    # The learner is not the bottleneck, so none of its options helps.
    assert not any("device" in change.option for change in others)


def test_changes_keep_what_a_run_demands():
    """A batch of 101 cannot be halved, and 64 shards would outnumber the environments."""
    run = dataclasses.replace(RUN, actors=16, batch=101)
    accepts = partial(is_accepted, D4PGConfig())
    options = [change.option for change in best_changes(PARTS, run, ALONE, accepts, most=100)]
    assert options[0].startswith("--device-speedup 10")
    assert not any(option.startswith(("--replicas", "--replay-shards")) for option in options)


def test_changes_keep_the_accelerators_of_a_process():
    run = dataclasses.replace(RUN, actors=64, replicas=8, learner_processes=2)
    hardware = Hardware(machines=8, cores=64.0, device_speedup=1.0, network_gbps=1000.0)
    parts = dataclasses.replace(PARTS, step_row=1e-4)
    found = best_changes(parts, run, hardware, lambda run: True, most=100)
    (change,) = [change for change in found if change.option.startswith("--replicas")]
    changed = change.prediction.run
    assert change.option == "--replicas multi_worker:4"
    assert (changed.replicas, changed.learner_processes) == (16, 4)


@pytest.mark.parametrize(
    ("batch", "min_size", "changes"),
    [
        # The limiter needs 17,920 samples, twice what a call takes and the input holds:
        # 1,000 x 32 suffice, 1,000 x 16 do not.
        (256, 1000, {"samples_per_insert": 16.0}),
        # Each table needs two items of 8 transitions.
        (8, 24, {"replay_shards": 2}),
    ],
)
def test_changes_keep_what_a_replay_demands(batch, min_size, changes):
    config = SACConfig()
    replay = dataclasses.replace(config.replay, samples_per_insert=32.0, min_size=min_size)
    config = dataclasses.replace(config, replay=replay)
    config = dataclasses.replace(config, steps_per_call=16 if batch == 256 else 1)
    run = dataclasses.replace(RUN, actors=4, batch=batch, samples_per_insert=32.0)
    assert is_accepted(config, run)
    assert not is_accepted(config, dataclasses.replace(run, **changes))
    ((name, _),) = changes.items()
    parts = dataclasses.replace(PARTS, sample_server=1e-2)
    for accepts, is_there in ((lambda run: True, True), (partial(is_accepted, config), False)):
        found = best_changes(parts, run, Hardware(cores=64.0), accepts, most=100)
        assert any(name.replace("_", "-") in change.option for change in found) == is_there
