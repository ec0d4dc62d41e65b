"""Films as files."""

import os

import imageio.v3 as iio
import numpy as np
import psutil
import pytest

from agents.policies import playing
from agents.task import Task
from rl_replicator.errors import UsageError
from tests.agents.still_actor import StillActor


def _add(add, number):
    for _ in range(number):
        add(np.zeros((64, 64, 3), np.uint8))


def _count(path):
    return sum(1 for _ in iio.imiter(path, plugin="FFMPEG"))


@pytest.mark.parametrize(("repeats", "frames"), [(1, 7), (2, 11), (4, 6)])
def test_frames_follow_steps_of_the_simulator(repeats, frames):
    """One for each third of the 20 steps of an episode and its begin, or for each action."""
    task = Task("environments.fakes:target", repeats=repeats)
    shown = []
    with task.make(seed=1) as environment:
        player = playing.Player(task, environment, StillActor(), max_actions=99)
        (found,) = player.play(shown.append, episodes=1)
    assert len(shown) == frames and 10 < found < 20


def test_films_of_one_name_that_are_made_at_once_are_all_whole(tmp_path):
    path = tmp_path / f"{'x' * 240}.mp4"
    with playing.film(path) as add:
        _add(add, 20)
        with playing.film(path) as add_to_other:
            _add(add_to_other, 5)
        assert _count(path) == 5
        with pytest.raises(ZeroDivisionError), playing.film(path) as add_to_third:
            _add(add_to_third, 5)
            raise ZeroDivisionError
        _add(add, 20)
    assert _count(path) == 40 and list(tmp_path.iterdir()) == [path]


def test_the_encoder_of_a_film_is_no_fork(tmp_path):
    """imageio's forks are known by their own process group; gRPC's handlers may block them."""
    with playing.film(tmp_path / "film.mp4") as add:
        _add(add, 1)
        (encoder,) = (x for x in psutil.Process().children() if "ffmpeg" in x.name())
        assert os.getpgid(encoder.pid) == os.getpgid(0)


def test_a_folder_in_the_place_of_a_film_is_named_before_an_episode_is_played(tmp_path):
    (tmp_path / "film.gif").mkdir()
    message = "--out: expected a file named .mp4 or .gif, got the folder .*film.gif"
    with pytest.raises(UsageError, match=message), playing.film(tmp_path / "film.gif"):
        pytest.fail("it began")
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]
