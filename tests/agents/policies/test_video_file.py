"""Films as files."""

import imageio.v3 as iio
import numpy as np
import pytest

from agents.policies import video_file


def _add(add, number):
    for _ in range(number):
        add(np.zeros((64, 64, 3), np.uint8))


def _count(path):
    return sum(1 for _ in iio.imiter(path, plugin="FFMPEG"))


def test_films_of_one_name_that_are_made_at_once_are_all_whole(tmp_path):
    path = tmp_path / f"{'x' * 240}.mp4"
    with video_file.film(path) as add:
        _add(add, 20)
        with video_file.film(path) as add_to_other:
            _add(add_to_other, 5)
        assert _count(path) == 5
        with pytest.raises(ZeroDivisionError), video_file.film(path) as add_to_third:
            _add(add_to_third, 5)
            raise ZeroDivisionError
        _add(add, 20)
    assert _count(path) == 40 and list(tmp_path.iterdir()) == [path]
