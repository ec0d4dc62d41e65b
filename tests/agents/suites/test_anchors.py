"""Published returns: the committed file, and mistakes in others."""

import pytest

from agents.suites.anchors import DEFAULT, Anchors
from agents.suites.tasks import SUITES
from rl_replicator.errors import UsageError


@pytest.mark.parametrize(
    ("steps", "means"),
    [
        (100_000, {"D4PG": 318, "SAC (1)": 435, "SimbaV2 (1)": 593, "BRO (10)": 696}),
        (500_000, {"D4PG": 695, "SAC (1)": 718, "SimbaV2 (0.5)": 826, "BRO (10)": 830}),
    ],
)
def test_means_are_those_that_the_publications_sum_up_to(steps, means):
    anchors = Anchors.read(DEFAULT, "state", steps)
    for name, mean in means.items():
        assert anchors.mean(name, SUITES["dmc14"].tasks) == pytest.approx(mean, abs=0.5)


def test_every_task_of_every_suite_has_an_anchor():
    for name, observations in (("dmc14", "state"), ("dmc-hard", "state"), ("dmc-pixels", "pixels")):
        anchors = Anchors.read(DEFAULT, observations, 500_000)
        assert anchors.mean("MR.Q (0.5)" if observations == "state" else "MR.Q", SUITES[name].tasks)


def test_a_mean_needs_all_tasks():
    anchors = Anchors.read(DEFAULT, "state", 100_000)
    assert anchors.mean("D4PG", ["walker:walk", "dog:walk"]) is None
    assert anchors.mean("D4PG", []) is None
    assert anchors.mean("PPO", ["walker:walk"]) is None
    assert Anchors.read(DEFAULT, "state", 123).returns == {}


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("task,score\nwalker:walk,3\n")
    with pytest.raises(UsageError, match="expected rows with the columns algorithm, "):
        Anchors.read(tmp_path / "a.csv", "state", 100_000)


HEAD = "task,observations,algorithm,updates_per_step,environment_steps,return_mean,source\n"
GOOD = "a:b,state,SAC,1,1000,3.5,there\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "a:b,state,SAC,1,1e3,3.5,there",
            "line 3: expected a whole number as environment_steps, got '1e3'",
        ),
        (
            "a:b,state,SAC,1,1000,many,there",
            "line 3: expected a finite number as return_mean, got 'many'",
        ),
        (
            "a:b,state,SAC,1,1000,nan,there",
            "line 3: expected a finite number as return_mean, got 'nan'",
        ),
        ("a:b,state,SAC,1,1000", "line 3: expected 7 values, got another number"),
        ("a:b,state,SAC,1,1000,3.5,there,too", "line 3: expected 7 values, got another number"),
        ("a:b,state,S\xe4C,1,1000,3.5,there", "expected a CSV file in UTF-8, got .*a.csv: 'utf-8'"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    path = tmp_path / "a.csv"
    path.write_text(HEAD + GOOD)
    assert Anchors.read(path, "state", 1000).returns == {"SAC (1)": {"a:b": 3.5}}
    path.write_bytes((HEAD + GOOD + row).encode("latin-1"))
    with pytest.raises(UsageError, match=f"--anchors: .*{message}") as error:
        Anchors.read(path, "state", 1000)
    assert "\n" not in str(error.value)
