"""A folder of datasets for each test."""

import pytest


@pytest.fixture(autouse=True)
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
