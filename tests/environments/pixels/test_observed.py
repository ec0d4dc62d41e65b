"""Frames that are images among an environment's own observations."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import environments
from agents.nodes.evaluator import frame_strip
from environments import PixelConfig, PixelEnvironment

OBSERVED = PixelConfig(render="observed")


class Seen(gymnasium.Env):
    """Shows its time as the brightness of a grey image of 9 x 12, beside a number."""

    render_mode = None

    def __init__(self, image=None):
        self.image = image or spaces.Box(0, 255, (9, 12), np.uint8)
        self.observation_space = spaces.Dict({"eye": self.image, "n": spaces.Box(0, 1, (1,))})
        self.action_space = spaces.Discrete(2)
        self.canvas = np.zeros((9, 12), np.uint8)

    def _observe(self):
        self.canvas[:] = self.time  # The same array at every step.
        return {"eye": self.canvas, "n": np.full(1, self.time / 8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        return self._observe(), 1.0, False, self.time == 7, {}


def adapted(environment):
    return environments.adapt(environment, drops_images=True)


def unchanged(environment):
    return environment


def make(seed):
    return Seen()


@pytest.mark.parametrize("wrap", [(), (f"{__name__}:unchanged",)])
def test_a_frame_is_the_newest_image(wrap):
    environment = environments.make(f"{__name__}:make", 0, OBSERVED, wrap, action_repeat=2)
    assert environment.observation_spec().shape == (9, 12, 1)
    frames = [environment.reset().observation]
    for _ in range(4):
        frames.append(environment.step(np.int32(1)).observation)
    assert [int(frame.max()) for frame in frames] == [0, 2, 4, 6, 7]
    assert all((frame == frame.max()).all() and frame.shape == (9, 12, 1) for frame in frames)
    assert environment.reset().observation.max() == 0
    stack = np.concatenate(frames, axis=-1)
    np.testing.assert_array_equal(frame_strip(stack)[4, ::12, 1], [0, 2, 4, 6, 7])


@pytest.mark.parametrize(("names", "wrap"), [(("n",), f"{__name__}:unchanged"), (("all",), None)])
def test_entries_beside_the_image_are_kept_by_name(names, wrap):
    wrap = () if wrap is None else (wrap,)
    frame = dataclasses.replace(OBSERVED, state=names)
    environment = environments.make(f"{__name__}:make", 0, frame, wrap, action_repeat=2)
    spec = environment.observation_spec()
    assert (spec["pixels"].shape, spec["vector"].shape) == ((9, 12, 1), (1,))
    environment.reset()
    observation = environment.step(np.int32(1)).observation
    assert (observation["pixels"] == 2).all()
    assert observation["vector"].dtype == np.float32 and observation["vector"].tolist() == [0.25]


def test_entries_of_a_task_are_in_the_order_of_their_names():
    frame = PixelConfig(height=24, width=24, state=("velocity", "position"))
    with environments.make("cartpole:balance", 3, frame, action_repeat=1) as environment:
        observation = environment.reset().observation
        assert observation["pixels"].shape == (24, 24, 3)
        with environments.make("cartpole:balance", 3) as own:
            vector, fields = own.reset().observation, own.observation_fields
        expected = np.concatenate([vector[fields[name]] for name in frame.state])
        np.testing.assert_array_equal(observation["vector"], expected)
    for name, known in (("cartpole:balance", "position, velocity"), (f"{__name__}:make", "n")):
        wrong = dataclasses.replace(OBSERVED if ":make" in name else frame, state=("eye", "n"))
        with pytest.raises(environments.EnvironmentSpecError, match=f"of {known}, got eye n"):
            environments.make(name, 0, wrong)


def test_other_observations_are_refused():
    box = spaces.Box(0, 1, (3,))
    with pytest.raises(environments.EnvironmentSpecError, match="expected one image, .*got none; "):
        PixelEnvironment(adapted(Seen(box)), OBSERVED)
    first = adapted(Seen(spaces.Box(0, 255, (4, 84, 84), np.uint8)))
    with pytest.raises(environments.EnvironmentSpecError, match=r"got \[\(4, 84, 84\)\]; "):
        PixelEnvironment(first, OBSERVED)
    stacked = adapted(Seen(spaces.Box(0, 255, (9, 12, 4), np.uint8)))
    assert PixelEnvironment(stacked, OBSERVED).observation_spec().shape == (9, 12, 4)
    with pytest.raises(environments.EnvironmentSpecError, match="--frame.grey, got one of 4 ch"):
        PixelEnvironment(stacked, dataclasses.replace(OBSERVED, grey=True))
    for name, value in {"height": 32, "width": 32, "cameras": (1,)}.items():
        with pytest.raises(environments.EnvironmentSpecError, match=f"^{name} of frames: expected"):
            PixelConfig(**{"render": "observed", name: value})
    small = PixelEnvironment(adapted(Seen(spaces.Box(0, 255, (9, 13, 3), np.uint8))), OBSERVED, 2)
    with pytest.raises(
        environments.EnvironmentDataError, match=r"image at step 0 .*\(9, 13, 3\), "
    ):
        small.reset()
