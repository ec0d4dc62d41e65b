"""What the tests of runs share."""

import pytest


@pytest.fixture
def untrained(monkeypatch):
    """Runs are prepared, but not trained; a list with an entry for each."""
    runs = []
    monkeypatch.setattr("agents.runs.run._run", lambda *_: runs.append(None) or 0)
    return runs
