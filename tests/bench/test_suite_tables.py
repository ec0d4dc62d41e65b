"""Tables in Markdown files, made from result files of suites."""

import pytest

from agents.suites import results
from agents.suites.results import ANCHORS, ResultRow
from bench import suite_tables, tables
from bench.harness import ROOT


@pytest.mark.parametrize("path", tables.documents(), ids=lambda path: path.name)
def test_committed_tables_are_those_of_the_result_files(path):
    text = path.read_text()
    made = suite_tables.rewrite(text, ANCHORS.parent)
    assert made == text, "run: python -m bench.tables"


def test_the_results_have_a_table():
    assert "<!-- results: " in (ROOT / "docs" / "results.md").read_text()


def row(task, seed, steps, mean, clock, failed=0.0):
    return ResultRow(
        *("td3", "paper", "state", task, seed, steps, steps // 4),
        *(mean, mean - 1, mean, mean + 1, failed, 10, clock),
    )


@pytest.fixture
def directory(tmp_path):
    rows = [
        row("walker:walk", 1, 50_000, 100.0, 60.0),
        row("walker:walk", 1, 100_000, 200.0, 125.0, failed=0.5),
        row("walker:walk", 2, 99_500, 400.0, 3700.0),  # Within 2 % of the mark.
        row("hopper:hop", 1, 100_000, 10.0, 125.0),
    ]
    results.write(tmp_path / "a.csv", rows)
    assert suite_tables.read(tmp_path / "a.csv") == rows
    (tmp_path / "anchors.csv").write_text(ANCHORS.read_text())
    return tmp_path


def test_a_table(directory):
    text = "# A\n<!-- results: a.csv at 50000 100000 -->\nold\n<!-- end of results -->\nend\n"
    lines = suite_tables.rewrite(text, directory).splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("# A", *text.splitlines()[1::2], "end")
    assert lines[2:-2] == [
        "| task | seeds | environment steps | updates a step | return | failed | clock | "
        "D4PG, published | SimbaV2 (1), published | best known |",
        "| " + " | ".join(["---"] * 10) + " |",
        "| walker:walk, td3, paper | 1 | 50,000 | 0.25 | 100 | 0% | 1:00 |  |  |  |",
        "| walker:walk, td3, paper | 1, 2 | 100,000 | 0.25 | 300 (200 to 400) | 25% | 2:05 to "
        "1:01:40 | 343 | 962 | 967 |",
        "| hopper:hop, td3, paper | 1 | 100,000 | 0.25 | 10 | 0% | 2:05 | 0 | 47 | 176 |",
        "| mean of 2 tasks |  | 100,000 |  | 155 |  |  | 172 | 504 | 572 |",
    ]
