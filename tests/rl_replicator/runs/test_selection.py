"""Which runs the paths on a command line stand for."""

import os
from pathlib import Path

from rl_replicator.runs import selection


def test_each_run_once_in_the_order_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a", "folder/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    os.symlink("a", "link")
    given = ["b", "a", tmp_path / "b", "folder/../a", "link", "folder", "folder/c"]
    assert selection.expanded([Path(path) for path in given]) == [
        Path("b"),
        Path("a"),
        Path("folder/c"),
    ]
