"""Tests of files that several checkpoints have in common."""

import os

import pytest

from rl_replicator.checkpoints.links import link_or_copy


def test_a_file_is_linked(tmp_path):
    (tmp_path / "source").write_text("state")
    link_or_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").samefile(tmp_path / "source")


def test_a_file_system_without_links_gets_a_copy(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "source").write_text("state")
    link_or_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_text() == "state"
    assert not (tmp_path / "target").samefile(tmp_path / "source")


def test_a_file_that_another_checkpoint_shares_is_not_overwritten(tmp_path):
    for name in ("source", "other"):
        (tmp_path / name).write_text(name)
    link_or_copy(tmp_path / "other", tmp_path / "target")
    with pytest.raises(FileExistsError):
        link_or_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "other").read_text() == "other"
