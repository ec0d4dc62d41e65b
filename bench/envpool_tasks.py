"""Compares EnvPool's tasks of the dm_control suite with dm_control's own, from equal states.

    python -m bench.envpool_tasks [--tasks NAME ...]

EnvPool can neither set nor return the state of a simulator. So the state is computed from its
observations at the start of an episode and after two steps: a least-squares fit of positions,
velocities, activations, and the parts of the model that episodes draw at random (targets,
stiffness, gearing), with dm_control's own observations as the function. Then both take the same
random actions, and the largest differences over some steps are recorded: of observations relative
to 1 + their size, of rewards absolute. A start whose state cannot be found, because the
observations do not determine it or the fit ends in a local minimum, is replaced by the next one.
Episodes of both must have equal lengths and last discounts.
"""

import contextlib
import logging
import time
from typing import Any

import dm_env
import mujoco
import numpy as np
from dm_control.rl.control import PhysicsError

import environments
from bench import harness
from environments.engines import envpool_tasks

FITTED_STEPS, STEPS = 2, 3
FITTED = 1e-8
# Observations that are not smooth enough for a fit.
ROUGH = ("touch", "force", "inertial", "imu", "contact", "sensor")
# -log10 of the difference. EnvPool's rewards are float32, with seven to eight digits.
OBSERVATIONS = harness.Unit("equal digits of observations")
REWARDS = harness.Unit("equal digits of rewards")


class Simulator:
    """dm_control's task, whose state can be set.

    A state is a list of arrays: qpos, qvel, act, and parts of the model.
    """

    def __init__(self, name: str):
        self.environment = environments.make(name, seed=1)
        self.raw: Any = self.environment.wrapped
        self.model, self.data = self.raw.physics.model.ptr, self.raw.physics.data.ptr
        self.drawn = _drawn_parts(name.partition(":")[0], self.model)
        self.names = list(self.raw.observation_spec())
        self.smooth = [n for n in self.names if not any(word in n for word in ROUGH)]
        sizes = [self.model.nv, self.model.nv, self.model.na, *(part.size for part in self.drawn)]
        self._ends = np.cumsum(sizes)
        self.size = int(self._ends[-1])

    def start(self) -> list[np.ndarray]:
        """Returns the state at the start of a new episode."""
        self.raw.reset()
        data = self.data
        return [part.copy() for part in (data.qpos, data.qvel, data.act, *self.drawn)]

    def moved(self, state: list[np.ndarray], change: np.ndarray) -> list[np.ndarray]:
        """Returns a state changed by `change`; quaternions keep unit length."""
        turn, *changes = np.split(change, self._ends[:-1])
        qpos = state[0].copy()
        mujoco.mj_integratePos(self.model, qpos, np.ascontiguousarray(turn), 1.0)
        return [qpos, *(part + own for part, own in zip(state[1:], changes, strict=True))]

    def set(self, state: list[np.ndarray]) -> None:
        """Sets the simulator to a state, at time 0."""
        qpos, qvel, act, *drawn = state
        for own, part in zip(self.drawn, drawn, strict=True):
            own[...] = part
        data = self.data
        data.time, data.qpos[:], data.qvel[:], data.act[:] = 0.0, qpos, qvel, act
        data.ctrl[:], data.qacc_warmstart[:] = 0.0, 0.0
        mujoco.mj_forward(self.model, data)

    def observations(self, state: list[np.ndarray], actions: np.ndarray) -> np.ndarray:
        """Returns the smooth observations in a state and after each action, [T + 1, n]."""
        self.set(state)
        raw, physics = self.raw, self.raw.physics
        rows = [self.flat(raw.task.get_observation(physics), self.smooth)]
        for action in actions:
            raw.task.before_step(action, physics)
            physics.step(round(raw.control_timestep() / physics.timestep()))
            raw.task.after_step(physics)
            rows.append(self.flat(raw.task.get_observation(physics), self.smooth))
        return np.stack(rows)

    @staticmethod
    def flat(observation: Any, names: list[str]) -> np.ndarray:
        """Concatenates some arrays of an observation to one of float64."""
        return np.concatenate([np.ravel(np.asarray(observation[n], np.float64)) for n in names])


def _drawn_parts(domain: str, model: Any) -> list[np.ndarray]:
    """Returns the arrays of the model that episodes draw at random."""
    parts = [
        position
        for kind in ("geom", "site", "body")
        for index, position in enumerate(getattr(model, f"{kind}_pos"))
        if "target" in getattr(model, kind)(index).name
    ]
    parts += [
        model.body_quat[index] for index in range(model.nbody) if "target" in model.body(index).name
    ]
    if domain == "lqr":
        parts.append(model.jnt_stiffness)
    if domain == "point_mass":
        parts.append(model.wrap_prm)
    return parts


def fit(
    simulator: Simulator, state: list[np.ndarray], actions: np.ndarray, target: np.ndarray
) -> tuple[list[np.ndarray], float]:
    """Finds a state from which the observations follow, by the Levenberg-Marquardt method.

    Args:
      simulator: the task.
      state: initial guess.
      actions: [T, A].
      target: [T + 1, n] observations at the start and after each action.

    Returns:
      The state, and the largest remaining difference, relative to 1 + the observation.
    """
    scale = 1 + np.abs(target)

    def residual(state: list[np.ndarray]) -> np.ndarray:
        return np.ravel((simulator.observations(state, actions) - target) / scale)

    rest, damping, width = residual(state), 1e-6, 1e-6
    for _ in range(40):
        if np.abs(rest).max() < 1e-13:
            break
        basis = np.eye(simulator.size) * width
        slopes = [
            residual(simulator.moved(state, e)) - residual(simulator.moved(state, -e))
            for e in basis
        ]
        jacobian = np.stack(slopes, axis=1) / (2 * width)
        for _ in range(8):
            system = np.vstack([jacobian, np.sqrt(damping) * np.eye(simulator.size)])
            right = np.concatenate([-rest, np.zeros(simulator.size)])
            moved = simulator.moved(state, np.linalg.lstsq(system, right, rcond=None)[0])
            moved_rest = residual(moved)
            if moved_rest @ moved_rest < rest @ rest:
                break
            damping = max(damping * 30, 1e-12)
        else:
            break
        gain = 1 - (moved_rest @ moved_rest) / (rest @ rest)
        state, rest, damping = moved, moved_rest, max(damping / 30, 1e-16)
        if gain < 1e-3:
            break
    return state, float(np.abs(rest).max())


def compare(simulator: Simulator, pool: Any, random: np.random.Generator) -> tuple[float, float]:
    """Compares one start; returns the differences of observations and rewards.

    Raises:
      LookupError: if the state could not be found.
    """
    bounds = simulator.environment.own_action_spec
    size = (FITTED_STEPS + STEPS, *bounds.shape)
    actions = random.uniform(bounds.minimum, bounds.maximum, size)
    theirs = [pool.reset(), *(pool.step(action[None]) for action in actions)]
    arrays = [
        {name: getattr(timestep.observation, name)[0] for name in simulator.names}
        for timestep in theirs
    ]
    smooth = np.stack([simulator.flat(row, simulator.smooth) for row in arrays])
    state = simulator.start()
    for steps in (0, FITTED_STEPS):
        state, rest = fit(simulator, state, actions[:steps], smooth[: steps + 1])
    if not rest < FITTED:
        raise LookupError
    simulator.set(state)
    differences = []
    for action, timestep, row in zip(actions, theirs[1:], arrays[1:], strict=True):
        ours = simulator.raw.step(action)
        expected = simulator.flat(ours.observation, simulator.names)
        apart = np.abs(simulator.flat(row, simulator.names) - expected) / (1 + np.abs(expected))
        differences.append((apart.max(), abs(timestep.reward[0] - ours.reward)))
    observation, reward = np.max(differences, axis=0)
    return float(observation), float(reward)


def check_episode(name: str, raw: Any, pool: Any) -> None:
    """Raises ValueError if an episode of zero actions differs in length or last discount.

    Args:
      name: name of the task.
      raw: dm_control's environment.
      pool: EnvPool's pool, of one environment.
    """
    action = np.zeros(raw.action_spec().shape)
    found = []
    for reset, step in ((raw.reset, raw.step), (pool.reset, lambda one: pool.step(one[None]))):
        timestep, length = reset(), 0
        while np.max(timestep.step_type) != dm_env.StepType.LAST:
            timestep = step(action)
            length += 1
        found.append((length, float(np.max(timestep.discount))))
    if found[0] != found[1]:
        raise ValueError(f"{name}: (length, last discount): expected {found[0]}, got {found[1]}")


def samples_of(name: str, rounds: int, seconds: float) -> list[tuple[float, float]]:
    """Compares starts of a task until enough are fitted or the time is over.

    Args:
      name: name of the task.
      rounds: number of starts.
      seconds: time limit.

    Returns:
      The differences of observations and of rewards, for each start.
    """
    simulator, random = Simulator(name), np.random.default_rng(0)
    pool = envpool_tasks.imported().make_dm(
        envpool_tasks.identifier(name), num_envs=1, num_threads=1, seed=1
    )
    check_episode(name, simulator.raw, pool)
    found: list[tuple[float, float]] = []
    until = time.monotonic() + seconds
    while len(found) < rounds and time.monotonic() < until:
        # A fit that diverges may end in a state in which the simulation fails.
        with contextlib.suppress(LookupError, PhysicsError, np.linalg.LinAlgError):
            found.append(compare(simulator, pool, random))
    return found


def main() -> None:
    """Compares all tasks."""
    parser = harness.parser("envpool_tasks", __doc__)
    parser.add_argument("--tasks", nargs="+", default=environments.names(), help="default: all")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each task, at most")
    options = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Fits pass through unstable states.
    report = harness.Report("envpool_tasks", options)
    for name in options.tasks:
        found = samples_of(name, options.rounds, options.seconds)
        if len(found) < options.rounds:
            differences = f", differences {np.max(found, axis=0)}" if found else ""
            report.leave_out(name, f"{len(found)} starts fitted{differences}")
            continue
        digits = -np.log10(np.maximum(found, np.finfo(float).eps))
        report.add({name: {OBSERVATIONS: list(digits[:, 0]), REWARDS: list(digits[:, 1])}})
    report.write()


if __name__ == "__main__":
    main()
