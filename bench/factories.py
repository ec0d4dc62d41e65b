"""Factories of environments of packages that register none, as a user would write them."""

from typing import Any


def aloha(seed: int) -> Any:
    """Returns a task of gym-aloha without the images that it observes, which it draws small."""
    import gym_aloha  # noqa: F401
    import gymnasium

    small = {"observation_width": 64, "observation_height": 48}
    environment = gymnasium.make(
        "gym_aloha/AlohaTransferCube-v0", obs_type="pixels_agent_pos", **small
    )
    return gymnasium.wrappers.FilterObservation(environment, ["agent_pos"])


def quadruped(seed: int) -> Any:
    """Returns a robot of gym-quadruped, whose constructor takes no render mode."""
    from gym_quadruped.quadruped_env import QuadrupedEnv

    return QuadrupedEnv(robot="mini_cheetah", state_obs_names=("qpos", "qvel"))


def weighted_hopper(seed: int) -> Any:
    """Returns a task of MO-Gymnasium, whose rewards are weighted."""
    import mo_gymnasium
    import numpy as np

    environment = mo_gymnasium.make("mo-hopper-v5", render_mode="rgb_array")
    return mo_gymnasium.wrappers.LinearReward(environment, weight=np.array([0.5, 0.3, 0.2]))


def lift(seed: int) -> Any:
    """Returns a task of robosuite, which is drawn off screen."""
    import robosuite
    from robosuite.wrappers import GymWrapper

    class Drawn(GymWrapper):
        render_mode = "rgb_array"

        def render(self):
            return self.env.sim.render(camera_name="agentview", width=128, height=128)[::-1]

    return Drawn(_lift(robosuite, seed))


def randomised_cheetah(seed: int) -> Any:
    """Returns a task of Gymnasium whose textures are drawn at random for each episode."""
    import mujoco
    import numpy as np
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    class Randomised(HalfCheetahEnv):
        def reset_model(self):
            brightest = self.np_random.integers(50, 256)
            shape = self.model.tex_data.shape
            self.model.tex_data[:] = self.np_random.integers(0, brightest, shape, np.uint8)
            if self.mujoco_renderer.viewer is not None:
                for index in range(self.model.ntex):
                    mujoco.mjr_uploadTexture(self.model, self.mujoco_renderer.viewer.con, index)
            return super().reset_model()

    return Randomised(render_mode="rgb_array")


def _lift(robosuite: Any, seed: int) -> Any:
    return robosuite.make(
        "Lift",
        robots="Panda",
        has_renderer=False,
        has_offscreen_renderer=True,
        use_camera_obs=False,
        use_object_obs=True,
        reward_shaping=True,
        horizon=200,
        seed=seed,
    )
