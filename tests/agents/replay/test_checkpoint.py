"""The replay of an earlier checkpoint in a new one."""

import errno
import os

import pytest

from agents.replay.checkpoint import SameReplayPart
from rl_replicator.checkpoints import Checkpointer


@pytest.mark.parametrize("has_links", [True, False])
def test_the_same_replay_outlives_the_earlier_checkpoint(tmp_path, monkeypatch, has_links):
    """A run that must end quickly saves it, even where the file system has no hard links."""

    def refuse(*paths):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "rows").write_text("many")
    info = Checkpointer(tmp_path / "checkpoints").save(7, {"replay": SameReplayPart(earlier)})
    copy = info.path / "replay" / "rows"
    assert copy.samefile(earlier / "rows") is has_links
    (earlier / "rows").unlink()
    assert copy.read_text() == "many"
