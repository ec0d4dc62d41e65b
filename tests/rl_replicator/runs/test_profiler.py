"""Profiles of steps: when they begin and end, and what is in them."""

import tensorflow as tf

from rl_replicator.runs.profiler import StepProfiler


def profiles(run_dir):
    return sorted(run_dir.glob("tensorboard/plugins/profile/*/*.xplane.pb"))


def test_the_steps_of_the_span_are_profiled_once(tmp_path):
    profiler = StepProfiler("4:8", tmp_path)

    @tf.function
    def early(x):
        return tf.sin(x)

    @tf.function
    def inside(x):
        return tf.linalg.matmul(x, x, name="profiled_product")

    for step in range(0, 16, 2):
        profiler.reach(step)
        (inside if 4 <= step < 8 else early)(tf.ones([8, 8]))
        assert len(profiles(tmp_path)) == (step >= 8)
    profiler.close()
    (profile,) = profiles(tmp_path)
    data = profile.read_bytes()
    assert b"profiled_product" in data and b"early" not in data


def test_a_call_that_takes_steps_of_the_span_is_profiled(tmp_path):
    profiler = StepProfiler("37:40", tmp_path)
    for step in (0, 16, 32):
        profiler.reach(step)
    tf.sin(tf.ones([8]))  # Steps 32 to 47.
    profiler.reach(48)
    assert len(profiles(tmp_path)) == 1


def test_a_run_that_ends_within_the_span_has_a_profile(tmp_path):
    profiler = StepProfiler("1:100", tmp_path)
    profiler.reach(2)
    profiler.close()
    assert len(profiles(tmp_path)) == 1


def test_a_span_that_is_not_reached_or_over_is_told(tmp_path, caplog):
    for span, told in (
        (None, []),
        ("100:110", ["no profile: the run ended before --profile-steps 100:110"]),
        ("1:5", ["no profile: step 7 is past --profile-steps 1:5"]),
    ):
        caplog.clear()
        profiler = StepProfiler(span, tmp_path)
        profiler.reach(7)
        profiler.reach(8)
        profiler.close()
        assert [record.getMessage() for record in caplog.records] == told
    assert not list(tmp_path.iterdir())
