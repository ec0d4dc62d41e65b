"""What is written stays beside the file until all is there."""

import errno
import os

import pytest

from rl_replicator.runs import whole_file


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("before")
    with pytest.raises(OSError, match="No space left"), whole_file.replacing(path) as new:
        new.write_text("af")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_link_leads_to_the_file_that_is_replaced(tmp_path):
    target = tmp_path / "folder" / f"{'x' * 240}.png"
    (tmp_path / "link.png").symlink_to(target)
    with whole_file.replacing(tmp_path / "link.png") as new:
        new.write_text("after")
        assert new.parent == target.parent and not target.exists()
    assert target.read_text() == "after" and (tmp_path / "link.png").is_symlink()
    assert list(target.parent.iterdir()) == [target]
