"""Data is written beside a file, which it replaces once it is complete."""

import errno
import os

import pytest

from rl_replicator.runs import atomic_file


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("before")
    with pytest.raises(OSError, match="No space left"), atomic_file.replacing(path) as new:
        new.write_text("af")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_link_leads_to_the_file_that_is_replaced(tmp_path):
    target = tmp_path / "folder" / f"{'x' * 240}.png"
    (tmp_path / "link.png").symlink_to(target)
    with atomic_file.replacing(tmp_path / "link.png") as new:
        new.write_text("after")
        assert new.parent == target.parent and not target.exists()
    assert target.read_text() == "after" and (tmp_path / "link.png").is_symlink()
    assert list(target.parent.iterdir()) == [target]


def test_a_folder_takes_its_name_when_all_is_there(tmp_path):
    path = tmp_path / "inner" / "made"
    with atomic_file.making_folder(path) as new:
        (new / "a").write_text("a")
        assert not path.exists()
    assert (path / "a").read_text() == "a" and list(path.parent.iterdir()) == [path]
    other = path.with_name("other")
    with pytest.raises(ZeroDivisionError), atomic_file.making_folder(other) as new:
        (new / "a").write_text("a")
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_has_left_is_removed(tmp_path):
    path = tmp_path / "made"
    with atomic_file.making_folder(path) as new:
        place = new
    path.rename(place)  # As a killed process leaves it.
    (place / "a").touch()
    with atomic_file.making_folder(path) as new:
        (new / "c").touch()
    assert [file.name for file in path.iterdir()] == ["c"] and list(tmp_path.iterdir()) == [path]
