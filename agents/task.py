"""What a run is about: an environment, and how the agent sees it."""

import dataclasses

from acme import specs

import environments


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment by name.

    Attributes:
      name: see `environments.make`.
      pixels: how its pictures are made, where the agent sees these; None where it sees the state.
    """

    name: str
    pixels: environments.PixelConfig | None = None

    def make(self, seed: int) -> "environments.Environment | environments.PixelEnvironment":
        """The environment.

        Raises:
          EnvironmentUsageError: if nothing goes by that name, or it cannot be seen like that.
        """
        return environments.make(self.name, seed=seed, pixels=self.pixels)

    def spec(self) -> specs.EnvironmentSpec:
        """The specs of what `make` gives."""
        return specs.make_environment_spec(self.make(seed=0))

    @property
    def action_repeat(self) -> int:
        """Environment steps of one action."""
        return 1 if self.pixels is None else self.pixels.repeats(self.name)

    def agent_steps(self, environment_steps: int) -> int:
        """Actions in so many environment steps, the last of them whole."""
        return -(-environment_steps // self.action_repeat)
