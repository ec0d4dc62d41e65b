"""What follows from settings: the discount from pixels, and the support of the critic."""

import numpy as np
import pytest
from acme import specs

from agents.config import resolved
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig, PixelD4PGConfig
from rl_replicator.errors import ConfigError
from tests.agents.fixed_samples import make_spec


def test_the_discount_from_pixels_is_that_of_as_many_simulator_steps():
    open_config = PixelD4PGConfig()
    found = {repeat: resolved(open_config, {}, repeat).discount for repeat in (1, 2, 4, 8)}
    assert found[8] == pytest.approx(0.97, abs=1e-12)
    for repeat, discount in found.items():
        assert discount == pytest.approx(found[1] ** repeat, abs=1e-12)
    assert resolved(PixelD4PGConfig(discount=0.9), {}, 4).discount == 0.9
    assert resolved(D4PGConfig(), {}, 4) == D4PGConfig()
    # A run keeps what it began with, and is refused later if that is not what was asked for.
    assert resolved(open_config, {}, 8).precision in ("float32", "bfloat16")
    for precision in ("float32", "bfloat16"):
        stored = {"precision": precision, "discount": 0.9}
        kept = resolved(open_config, stored, 8)
        assert (kept.precision, kept.discount) == (precision, 0.9)
        asked = PixelD4PGConfig(precision="float32")
        assert resolved(asked, stored, 8).precision == "float32"
    frames = specs.BoundedArray((64, 64, 3), np.uint8, 0, 255)
    spec = make_spec(frames)
    assert D4PG(resolved(open_config, {}, 8), spec).discount == found[8]
    with pytest.raises(ConfigError, match='expected a number, got "auto", which a run replaces'):
        D4PG(open_config, spec)


@pytest.mark.parametrize(
    ("rewards", "support"),
    [((0, 1), (0, 100)), ((-2, -1), (-200, 0)), ((0.5, 1), (0, 100)), ((-1, 2), (-100, 200))],
)
def test_the_support_holds_the_returns_of_episodes_that_end_soon(rewards, support):
    """The last step's return is one reward, outside the range of sums over endless episodes."""
    spec = make_spec(rewards=specs.BoundedArray((), np.float32, *rewards))
    atoms = D4PG(D4PGConfig(discount=0.99), spec).value_range.atoms()
    assert (atoms[0], atoms[-1]) == pytest.approx(support, rel=1e-4)
