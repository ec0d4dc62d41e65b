"""The task of a run: an environment, and the kind of its observations."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import tree
from acme import specs

import environments
from environments import catalogue
from environments.flat import MaskedArray, mask_size
from rl_replicator.errors import UsageError
from rl_replicator.runs.plain_data import from_plain, stored_part


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment by name.

    Attributes:
      name: see `environments.make`.
      pixels: how frames are rendered; None to observe the state.
      wrap: import paths of wrappers, the innermost first.
      time_limit: environment steps after which an episode is truncated; None for no other limit
        than the environment's own.
      repeats: environment steps per action; None for `environments.make`'s default.
      recorded: without a name: the form of recorded steps, see `described`. `make` then returns
        an environment with their specs that cannot be played.
    """

    name: str
    pixels: environments.PixelConfig | None = None
    wrap: tuple[str, ...] = ()
    time_limit: int | None = None
    repeats: int | None = None
    recorded: Mapping[str, Any] | None = None

    @classmethod
    def stored(cls, identity: Mapping[str, Any]) -> "Task":
        """Returns the task of a run. It does not need the agent.

        Args:
          identity: `AgentOptions.identity`, from the run's directory or from a model card.

        Raises:
          UsageError: if it is not what a run has stored.
        """
        is_pixels = identity.get("pixels") is not None
        plain = stored_part(identity, "pixels", Mapping) if is_pixels else None
        name = stored_part(identity, "env", str)
        return cls(
            name,
            None if plain is None else from_plain(environments.PixelConfig, plain),
            tuple(identity.get("wrap", ())),
            identity.get("time_limit"),
            identity.get("action_repeat"),
            None if name else stored_part(identity, "environment", Mapping),
        )

    def make(self, seed: int) -> "environments.Environment | environments.PixelEnvironment":
        """Makes the environment.

        Args:
          seed: seed of everything random in it.

        Raises:
          EnvironmentUsageError: if there is no such environment, or it cannot be rendered in this
            way.
        """
        if self.recorded is not None:
            return environments.adapt(_RecordedSpecs(self.recorded), seed)
        surroundings = self.pixels, self.wrap, self.time_limit, self.repeats
        return environments.make(self.name, seed, *surroundings)

    def adapt(
        self, environment: Any, seed: int
    ) -> "environments.Environment | environments.PixelEnvironment":
        """Makes an environment like that of `make` from an object.

        Args:
          environment: a `dm_env.Environment` or a `gymnasium.Env`, without the task's wrappers.
          seed: seed of a `gymnasium.Env` and of the wrappers.

        Raises:
          EnvironmentUsageError: if its specs do not fit, or it cannot be rendered in this way.
        """
        flat = environments.adapt(environment, seed, drops_images=self.pixels is not None)
        surroundings = self.pixels, self.wrap, self.time_limit, self.repeats
        return catalogue.surround(flat, self.name, seed, *surroundings)

    def model_action_spec(self, environment: Any) -> dm_env.specs.Array:
        """Returns the spec of the actions of an exported policy: the environment's own.

        A wrapper may change actions, so with wrappers it is that of the agent.

        Args:
          environment: an environment from `make`.
        """
        flat = environment if self.pixels is None else environment.wrapped
        return flat.action_spec() if self.wrap else flat.own_action_spec

    def described(self) -> tuple[specs.EnvironmentSpec, dict[str, Any]]:
        """Returns the specs of the environment, and its form: what gives a policy's numbers their
        meaning, as plain data."""
        with self.make(seed=0) as environment:
            made: Any = environment
            own = (made if self.pixels is None else made.wrapped).own_action_spec
            limits = [np.broadcast_to(x, own.shape).ravel() for x in (own.minimum, own.maximum)]
            observations = made.observation_spec()
            form = {
                "observations": tree.map_structure(lambda each: list(each.shape), observations),
                "action_limits": [limit.tolist() for limit in limits],
                **({"mask": mask} if (mask := mask_size(observations)) else {}),
            }
            return specs.make_environment_spec(made), form

    def spec(
        self, form: Mapping[str, Any] | None = None, origin: str = "the policy was trained"
    ) -> specs.EnvironmentSpec:
        """Returns the specs of the environment that `make` returns.

        Args:
          form: the form that it must have; None for any.
          origin: what was done in that form.

        Raises:
          UsageError: if the environment was edited since.
        """
        spec, found = self.described()
        if form not in (None, found):
            raise UsageError(
                f"expected {self.name} with {form}, in which {origin}, got {found}; restore the "
                "environment, or start again in this one"
            )
        return spec

    @property
    def action_repeat(self) -> int:
        """Environment steps per action."""
        usual = catalogue.default_action_repeat(self.name, self.pixels)
        return usual if self.repeats is None else self.repeats

    def agent_steps(self, environment_steps: int) -> int:
        """Returns the number of actions in `environment_steps`, rounded up."""
        return -(-environment_steps // self.action_repeat)


class _RecordedSpecs(dm_env.Environment):
    """The specs of recorded steps, without an environment."""

    def __init__(self, form: Mapping[str, Any]):
        self._form = form

    def observation_spec(self) -> specs.Array:
        (size,) = self._form["observations"]
        if "mask" in self._form:
            return MaskedArray(size, self._form["mask"])
        return specs.Array((size,), np.float32, "observation")

    def action_spec(self) -> specs.BoundedArray:
        low, high = (np.array(limit) for limit in self._form["action_limits"])
        is_discrete = low.dtype.kind == "i"  # Whole numbers, as from `Task.described`.
        dtype = low.dtype if is_discrete else np.float32
        return specs.BoundedArray(low.shape, dtype, low, high, "action")

    def reset(self) -> dm_env.TimeStep:
        raise UsageError(
            "expected a run with an environment to play in, got one of --offline without --env; "
            "play its exported policy in your own environment"
        )

    def step(self, action: Any) -> dm_env.TimeStep:
        return self.reset()
