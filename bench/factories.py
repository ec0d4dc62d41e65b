"""Factories of environments of packages that register none, as a user would write them."""

from typing import Any


def aloha(seed: int) -> Any:
    """Returns a task of gym-aloha without the images that it draws at every step."""
    import numpy as np
    from dm_control import mujoco
    from dm_control.rl import control
    from dm_env import specs
    from gym_aloha.constants import ACTIONS, ASSETS_DIR, DT
    from gym_aloha.tasks import sim
    from gym_aloha.utils import sample_box_pose

    class Cube(sim.TransferCubeTask):
        def initialize_episode(self, physics):
            sim.BOX_POSE[0] = sample_box_pose(self.random.randint(2**31))
            super().initialize_episode(physics)

        def action_spec(self, physics):
            return specs.BoundedArray([len(ACTIONS)], np.float32, -1.0, 1.0)

        def get_observation(self, physics):
            cube = self.get_env_state(physics)
            return {"qpos": self.get_qpos(physics), "qvel": self.get_qvel(physics), "cube": cube}

    path = ASSETS_DIR / "bimanual_viperx_transfer_cube.xml"
    physics = mujoco.Physics.from_xml_path(str(path))
    return control.Environment(physics, Cube(random=seed), time_limit=6.0, control_timestep=DT)


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


def xarm(seed: int) -> Any:
    """Returns a task of gym-xarm, whose renderers get their camera as Gymnasium 1 wants it."""
    from gym_xarm.tasks import Lift
    from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
    from gymnasium.wrappers import TimeLimit

    class Drawn(Lift):
        def _initialize_renderer(self, renderer_type):
            size = self.observation_width, self.observation_height
            return MujocoRenderer(self.model, self.data, None, *size, camera_name="camera0")

        def _render(self, renderer):
            self._render_callback()
            return renderer.render(self.render_mode)

    return TimeLimit(Drawn(observation_width=240, observation_height=240), 300)


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
