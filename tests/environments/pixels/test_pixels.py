"""Environments that observe frames."""

import functools
import gc
import re
import subprocess
import sys
import threading

import dm_env
import numpy as np
import pytest

import environments
from agents.task import Task
from environments.errors import RenderingUnavailableError
from environments.pixels import gl_context, rendering
from tests.environments import gymnasium_fake

Pixels = environments.PixelConfig
FAST = functools.partial(Pixels, render="fast")
EXACT = functools.partial(Pixels, render="exact")


@pytest.fixture(scope="module", autouse=True)
def _renderer():
    try:
        rendering.enable()
    except RenderingUnavailableError as error:
        pytest.skip(str(error))


def _make_gymnasium(config, action_repeat=1):
    from environments.pixels import environment

    flat = environments.adapt(gymnasium_fake.make(0), seed=1)
    return environment.PixelEnvironment(flat, config, action_repeat)


def test_what_cannot_be_drawn_is_one_line():
    silent = environments.adapt(gymnasium_fake.Seven(True, render_mode=None))
    for make, message in (
        (lambda: Pixels(height=7), r"^height of frames: expected an integer from 8 to 1024, got 7"),
        (lambda: Pixels(width=2000), "^width of frames: expected an integer from 8 to 1024, got 2"),
        (lambda: Pixels(height=64.0), r"got 64.0 \(float\)$"),
        (lambda: Pixels(cameras=(-2,)), r"cameras or indices of at least -1, .*, got \(-2,\)"),
        (lambda: Pixels(cameras=("",)), r"cameras or indices of at least -1, .*, got \('',\)"),
        (lambda: Pixels(cameras=()), r"at least one of them, got \(\)"),
        (lambda: Pixels(render="slow"), "expected one of auto, fast, exact, observed, got 'slow'"),
        (
            lambda: environments.make("environments.fakes:chain", 1, Pixels()),
            "^expected an environment that renders, got Chain, which can",
        ),
        (
            lambda: environments.make("environments.fakes:target", 1, FAST()),
            "^expected render 'auto' or 'exact' for TargetMatching",
        ),
        (
            lambda: environments.make("cartpole:swingup", 1, Pixels(cameras=("front",))),
            r"^expected a camera of the model, -1 to 1 \(by name: 'fixed', .* got 'front'",
        ),
        (
            lambda: environments.make("cartpole:swingup", 1, Pixels(cameras=(0, 2))),
            "^expected a camera of the model, -1 to 1 .* got 2$",
        ),
        (
            lambda: environments.PixelEnvironment(silent, Pixels()),
            "'rgb_array', got None; take render_mode in the constructor, and make the env",
        ),
        (
            lambda: _make_gymnasium(Pixels(cameras=(1,))).reset(),
            "^expected camera 0, because Gymnasium fixes the camera",
        ),
    ):
        with pytest.raises(environments.EnvironmentSpecError, match=message):
            make()


FAULTY = "tests.environments.faulty"


TARGET, CARTPOLE = "environments.fakes:target", "cartpole:swingup"


@functools.cache
def _seen(name, wrap, look):
    """How an environment is drawn, and its first frame as an observation and in a film."""
    made = environments.make(name, 3, Pixels(16, 16, render=look), wrap=wrap)
    return made.render_mode, [made.reset().observation, made.render(16, 16)]


@pytest.mark.parametrize(
    ("name", "wrap", "look"),
    [
        (TARGET, ["inverted"], "auto"),
        (TARGET, ["inverted", "passing_on"], "auto"),
        (CARTPOLE, ["inverted"], "auto"),
        (CARTPOLE, ["inverted", "passing_on"], "auto"),
        (f"{FAULTY}:inverted_physics", [], "exact"),
        # "fast" always shows the physics itself, as a run that was trained with it expects.
        (f"{FAULTY}:inverted_physics", [], "fast"),
        (CARTPOLE, ["inverted"], "fast"),
        (CARTPOLE, ["passing_on"], "fast"),
        (CARTPOLE, ["shown"], "auto"),  # Its render takes no height, width and camera_id.
    ],
)
def test_an_environment_or_a_wrapper_may_draw_the_frames(name, wrap, look):
    """Its own render draws observations and films, also within another wrapper."""
    _, plain = _seen(TARGET if name == TARGET else CARTPOLE, (), look)
    mode, drawn = _seen(name, tuple(f"{FAULTY}:{wrapper}" for wrapper in wrap), look)
    assert plain[0].any()
    if look == "fast" or "shown" in wrap:
        assert mode == rendering.resolve(look)
        np.testing.assert_array_equal(drawn[0], plain[0])
    else:
        assert mode == "own"
        np.testing.assert_array_equal(drawn, [255 - plain[1]] * 2)


@pytest.mark.parametrize("name", ["cartpole:swingup", "quadruped:escape", "lqr:lqr_2_1"])
def test_exact_is_dm_control_bit_for_bit(name):
    """Against the pictures of an unmodified dm_control environment, drawn alternately with ours.

    Ours uploads new terrain to dm_control's own context, too, once there is one.
    """
    from dm_control import suite

    ours = environments.make(name, 1, EXACT(48, 40))
    plain = suite.load(*name.split(":"), task_kwargs={"random": 1})
    camera = 0 if plain.physics.model.ncam else -1
    for _ in range(2):
        frame = ours.reset().observation
        plain.reset()
        np.testing.assert_array_equal(frame, plain.physics.render(48, 40, camera))
        own = ours.wrapped.wrapped.physics.render(48, 40, camera)
        np.testing.assert_array_equal(own, frame)


def _orange(frame):
    """The pixels of the cart and the pole, which are more red than blue."""
    return frame[..., 0].astype(int) > frame[..., 2].astype(int) + 20


def test_fast_shows_what_exact_shows():
    views = {
        look: environments.make("cartpole:swingup", 3, Pixels(84, 84, render=look))
        for look in ("exact", "fast")
    }
    for environment in views.values():
        environment.reset()
    for angle in (0.0, 1.0, 2.5, -1.0):
        for environment in views.values():
            physics = environment.wrapped.wrapped.physics
            with physics.reset_context():
                physics.named.data.qpos["hinge_1"] = angle
        exact, fast = (views[look].frame() for look in ("exact", "fast"))
        assert 0 < np.abs(exact.astype(int) - fast).mean() < 3
        thing, drawn = _orange(exact), _orange(fast)
        assert thing.sum() > 60
        assert (thing & drawn).sum() / (thing | drawn).sum() > 0.75
        side = np.argwhere(drawn)[:, 1].mean() - 41.5
        assert abs(side) < 2 if angle == 0.0 else side * np.sin(angle) > 0


def test_videos_stay_exact_and_the_model_as_it_was():
    fast = environments.make("walker:walk", 1, FAST())
    exact = environments.make("walker:walk", 1)
    quality = fast.wrapped.wrapped.physics.model.vis.quality
    before = quality.offsamples, quality.shadowsize, quality.numslices
    fast.reset()
    exact.reset()
    np.testing.assert_array_equal(fast.render(48, 64), exact.render(48, 64))
    assert (quality.offsamples, quality.shadowsize, quality.numslices) == before
    assert fast.render_mode == "fast"
    assert np.any(fast.frame() != exact.render(64, 64))


def test_repeated_actions_against_a_hand_run():
    drawn = environments.make("environments.fakes:target", 5, Pixels(16, 100), action_repeat=3)
    state = environments.make("environments.fakes:target", 5)
    repeated = environments.make("environments.fakes:target", 5, action_repeat=3)
    drawn.reset()
    state.reset()
    repeated.reset()
    random = np.random.RandomState(0)
    for step in range(7):  # 20 steps of the environment: six times three, then two.
        action = random.uniform(-1, 1, 1).astype(np.float32)
        timestep = drawn.step(action)
        by_hand = [state.step(action) for _ in range(3 if step < 6 else 2)]
        assert timestep.reward == pytest.approx(sum(part.reward for part in by_hand), rel=1e-6)
        assert timestep.reward.dtype == timestep.discount.dtype == np.float32
        assert timestep.step_type == by_hand[-1].step_type
        of_state = repeated.step(action)
        assert of_state[:3] == timestep[:3]
        np.testing.assert_array_equal(of_state.observation, by_hand[-1].observation)
        share = (timestep.observation[0, :, 0] == 255).mean()
        assert share == pytest.approx((by_hand[-1].observation[0] + 1) / 2, abs=0.01)
    assert timestep.last() and timestep.discount == 1
    after = drawn.step(action)
    assert after.first() and after.reward is None and after.discount is None
    for made in (drawn, repeated):
        assert made.reward_spec().minimum == 0 and made.reward_spec().maximum == 3


def test_actions_repeat_as_is_usual_for_the_domain_unless_told():
    names = ("cartpole:balance", "reacher:easy", "walker:walk", "environments.fakes:target")
    assert [Task(name, Pixels()).action_repeat for name in names] == [8, 4, 2, 2]
    assert [Task(name).action_repeat for name in names] == [1, 1, 1, 1]
    assert Task("cartpole:balance", Pixels(), repeats=3).action_repeat == 3
    drawn = environments.make("cartpole:balance", 5, Pixels(8, 8))
    assert drawn.reward_spec().maximum == 8  # That of a step is 1.


def test_discounts_within_a_repeat_weight_the_rewards_after_them():
    values = []
    for repeat in (1, 2, 4):
        drawn = environments.make(
            "tests.environments.faulty:halving", 5, Pixels(8, 8), action_repeat=repeat
        )
        timestep, value, weight = drawn.reset(), 0.0, 1.0
        while not timestep.last():
            timestep = drawn.step(np.zeros(1, np.float32))
            value += weight * timestep.reward
            weight *= timestep.discount
        assert weight == 0.5**5
        values.append(value)
    np.testing.assert_allclose(values, values[0], rtol=1e-6)


def test_cameras_are_channels_and_grey_is_luma():
    """As far as rounding allows, for a physics and for an environment that draws itself."""
    both = environments.make("cartpole:swingup", 1, EXACT(24, 32, cameras=(0, "lookatcart")))
    grey = environments.make("cartpole:swingup", 1, EXACT(24, 32, cameras=(1, 0), grey=True))
    both.reset(), grey.reset()
    assert both.observation_spec().shape == (24, 32, 6)
    assert grey.observation_spec().shape == (24, 32, 2)
    frame = both.frame()
    singles = [both.render(24, 32, camera) for camera in (0, 1)]
    np.testing.assert_array_equal(frame, np.concatenate(singles, axis=-1))
    lumas = [single @ [0.299, 0.587, 0.114] for single in reversed(singles)]
    np.testing.assert_allclose(grey.frame(), np.stack(lumas, axis=-1), atol=0.51)
    drawn = _make_gymnasium(Pixels(8, 8, grey=True))
    luma = _make_gymnasium(Pixels(8, 8)).reset().observation @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(drawn.reset().observation[..., 0], luma, atol=0.51)


def test_gymnasium_frames_are_averaged():
    environment = _make_gymnasium(Pixels(8, 8))
    environment.reset()
    picture = gymnasium_fake.make(0).render()
    np.testing.assert_array_equal(environment.frame()[::4, ::2], picture)
    small = environment.render(1, 2)
    np.testing.assert_array_equal(small[0, 0], picture[:, :2].reshape(4, 3).mean(0).round())


def test_viewers_of_gymnasium_do_not_darken_each_other():
    """Each is made, drawn and freed in this thread, as an actor's and an evaluator's may be."""
    pytest.importorskip("imageio")
    first = environments.make("gym:InvertedPendulum-v5", 1, Pixels(16, 16))
    expected = first.reset().observation
    assert expected.any()
    other = environments.make("gym:InvertedDoublePendulum-v5", 1, Pixels(16, 16))
    drawn = other.reset().observation
    np.testing.assert_array_equal(first.frame(), expected)
    np.testing.assert_array_equal(other.frame(), drawn)
    other.close()
    np.testing.assert_array_equal(first.frame(), expected)
    # Any thread may draw.
    frames = []
    thread = threading.Thread(target=lambda: frames.append(first.frame()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(frames[0], expected)
    first.close()


def _frames(environment, count):
    random = np.random.RandomState(0)
    shape = environment.action_spec().shape
    frames = [environment.reset().observation]
    for _ in range(count):
        action = random.uniform(-1, 1, shape).astype(np.float32)
        frames.append(environment.step(action).observation)
    return np.stack(frames)


@pytest.mark.parametrize("shares", [True, False])
def test_a_copy_of_the_physics_for_each_episode(shares):
    """A copy may share the model of the previous one; the copy's own state is drawn."""
    plain = environments.make("cartpole:swingup", 1, EXACT(24, 24)).wrapped.wrapped
    template = plain.physics

    class Copying(dm_env.Environment):
        def reset(self):
            self.physics = plain._physics = template.copy(share_model=shares)
            return plain.reset()

        def step(self, action):
            return plain.step(action)

        def observation_spec(self):
            return plain.observation_spec()

        def action_spec(self):
            return plain.action_spec()

    environment = Copying()
    environment.physics = template
    made = environments.PixelEnvironment(environments.adapt(environment), EXACT(24, 24))
    for _ in range(2):
        made.reset()
        for _ in range(2):
            frame = made.step(np.ones(1, np.float32)).observation
            np.testing.assert_array_equal(frame, environment.physics.render(24, 24, 0))
            np.testing.assert_array_equal(
                made.render(24, 30), environment.physics.render(24, 30, 0)
            )


def test_textures_that_are_uploaded_to_dm_control_are_drawn():
    """As for domain randomisation, also in the midst of an episode."""
    from dm_control import suite
    from dm_control.mujoco.wrapper import mjbindings

    plain = suite.load("cartpole", "swingup", task_kwargs={"random": 1})
    physics, model = plain.physics, plain.physics.model
    made = environments.PixelEnvironment(environments.adapt(plain), EXACT(24, 24))
    for colour in (None, 0, 255):
        frame = made.reset().observation if colour == 0 else made.step(np.ones(1, "f4")).observation
        np.testing.assert_array_equal(frame, physics.render(24, 24, 0))
        for texture in range(model.ntex):
            model.tex_data[:] = colour or 0
            with physics.contexts.gl.make_current() as call:
                call.call(
                    mjbindings.mjlib.mjr_uploadTexture,
                    model.ptr,
                    physics.contexts.mujoco.ptr,
                    texture,
                )
        drawn = made.frame()
        np.testing.assert_array_equal(drawn, physics.render(24, 24, 0))
        np.testing.assert_array_equal(drawn, made.render(24, 24))


def test_contexts_of_dm_control_belong_to_no_thread():
    """One thread draws, others draw as well, and the last one frees what it drew with."""
    from dm_control import suite

    physics = suite.load("cartpole", "swingup", task_kwargs={"random": 1}).physics
    frames = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: frames.append(physics.render(24, 24)))
        thread.start()
        thread.join()
    # Other code may leave another context current, or none.
    with rendering.previous_restored(rendering.enable().kind):
        frames.append(physics.render(24, 24))
    for frame in (*frames, physics.render(24, 24)):
        np.testing.assert_array_equal(frame, frames[0])
    assert len(np.unique(frames[0])) > 20
    thread = threading.Thread(target=physics.render)
    thread.start()
    thread.join()
    physics.free()


def test_a_context_of_dm_control_that_is_still_open_at_the_end_of_its_process():
    words = """
from environments.pixels import rendering
rendering.enable()
from dm_control import suite
physics = suite.load("cartpole", "swingup").physics
physics.render(24, 24)
suite.physics = physics  # Freed with the modules, when nothing can be imported.
"""
    run = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


class _DrawnByDmControl(gymnasium_fake.Seven):
    """Draws with dm_control's own context."""

    def __init__(self, physics):
        super().__init__(True)
        self.physics = physics

    def render(self):
        return self.physics.render(24, 24)


def test_each_picture_of_dm_control_in_gymnasium_is_drawn():
    from dm_control import suite

    physics = suite.load("cartpole", "swingup", task_kwargs={"random": 1}).physics
    environment = environments.adapt(_DrawnByDmControl(physics), seed=1)
    environment.reset()
    for _ in range(3):
        np.testing.assert_array_equal(environment.render(24, 24), physics.render(24, 24))


def test_seeds_and_random_states_reproduce_frames():
    make = functools.partial(environments.make, "reacher:easy", pixels=FAST(32, 32))
    first, second = make(seed=7), make(seed=7)
    frames = _frames(first, 5)
    np.testing.assert_array_equal(frames, _frames(second, 5))
    assert np.any(frames[0] != _frames(make(seed=8), 0)[0])
    assert len({frame.ctypes.data for frame in frames}) == len(frames)
    second.random_state = first.random_state
    np.testing.assert_array_equal(_frames(first, 2), _frames(second, 2))


def test_threads_draw_what_one_thread_draws():
    names = ("cartpole:swingup", "reacher:easy", "walker:walk")
    made = [environments.make(name, 2, FAST(32, 32)) for name in names]
    results = {}

    def act(index):
        results[index] = [_frames(made[index], 20) for _ in range(2)]

    threads = [threading.Thread(target=act, args=(index,)) for index in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, name in enumerate(names):
        alone = environments.make(name, 2, FAST(32, 32))
        for frames in results[index]:
            np.testing.assert_array_equal(frames, _frames(alone, 20))
    # The threads have ended, but their environments still draw in this one.
    for environment in made:
        assert environment.frame().any()


class Owner:
    """Owns a context."""


def _lose(size):
    """Opens a context whose owner is left to the cyclic garbage collector."""
    owner = Owner()
    owner.itself = owner
    with gl_context.Context(owner, size, size).current():
        pass


def test_the_garbage_collector_makes_no_opengl_call():
    """It runs finalizers in any thread, and so possibly between another context's OpenGL calls."""
    gc.collect()
    owner = Owner()
    context = gl_context.Context(owner, 16, 16)
    with context.current():
        pass
    count = gl_context.count()
    with context.current():
        _lose(16)
        gc.collect()
        assert gl_context.count() == count + 1
    with context.current():
        assert gl_context.count() == count
    context.close()
    context.close()
    assert gl_context.count() == count - 1
    with pytest.raises(RuntimeError, match="got one that has been closed"), context.current():
        pass


def test_a_process_that_draws_until_it_ends():
    """The first frame loads OpenGL; at the end, daemon threads draw."""
    script = """
import sys, threading, time
import environments
config = environments.PixelConfig(32, 32, render="fast")
assert not [x for x in ("numpy", "dm_env", "dm_control", "mujoco") if x in sys.modules]
made = [environments.make("cartpole:swingup", seed=0, pixels=config) for _ in range(3)]
assert "OpenGL" not in sys.modules and "libEGL" not in open("/proc/self/maps").read()
made[0].reset()
assert "OpenGL" in sys.modules
drawn = []

def draw(environment):
    while True:
        drawn.append(environment.frame().shape)
        environment.close()

for environment in made:
    environment.reset()
    threading.Thread(target=draw, args=(environment,), daemon=True).start()
while len(drawn) < 6:
    time.sleep(0.01)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_line_of_a_run():
    with environments.make("cartpole:balance", 0, FAST(32, 48)) as environment:
        text = environment.describe_rendering()
    name, kind = rendering.find().name, rendering.find().kind.upper()
    assert text.startswith(f"rendering: {kind}, {name}, fast")
    assert re.search(r", 32x48: \d+ frames/s$", text)
    made = environments.make("environments.fakes:chain", 0, Pixels(), [f"{FAULTY}:drawing"])
    own = made.describe_rendering()
    assert own.startswith("rendering: by the environment itself, 64x64: ")
