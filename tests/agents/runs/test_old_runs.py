"""A run directory that version 0.1.0 made: it is evaluated as then, and not continued."""

import json
import shutil
from pathlib import Path

import pytest
import tensorflow  # noqa: F401 - so that conftest splits its CPU before the first run

from agents import d4pg
from agents.d4pg import D4PGConfig
from agents.runs.options import AgentOptions
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory, from_plain

OLD = Path(__file__).parent / "version_0_1_0"


def test_it_is_evaluated_as_version_0_1_0_did(capsys):
    assert d4pg.command.evaluate(OLD, episodes=2, seed=3) == 0
    assert capsys.readouterr().out == "return 14.8 (min 14.6, max 14.9, 2 episodes)\n"


def test_it_cannot_be_continued_and_is_not_touched(tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(OLD, run_dir)
    plain = RunDirectory(run_dir).config()["identity"]["agent"]
    options = AgentOptions(
        env="environments.fakes:target",
        steps=500,
        agent=from_plain(D4PGConfig, plain),
        run_dir=run_dir,
    )
    before = json.loads((run_dir / "config.json").read_text())
    with pytest.raises(UsageError, match=r"exploration was None .* another --run-dir") as error:
        d4pg.command.train(options)
    assert "\n" not in str(error.value)
    assert json.loads((run_dir / "config.json").read_text()) == before
