"""Sides measured in turn, result files, their comparison, and tables made from them."""

import argparse
import ast
import json
import os
import re

import pytest

from bench import __main__ as suite
from bench import compare, harness, tables

RATE, COST = harness.Unit("steps/s"), harness.Unit("bytes", more_is_better=False)
# Faults are counted, not timed in turn: their files have another format.
FILES = sorted(set(harness.RESULTS.glob("*.json")) - set(harness.RESULTS.glob("faults_*.json")))
TOOLS = {"__init__", "__main__", "compare", "harness", "processes"}
TOOLS |= {"damaged_run", "factories", "fault_kinds", "reacher_positions", "suite_tables", "tables"}


def write(path, **samples):
    """Writes a result file of two sides, `ours` and `peer`, and returns its path."""
    report = harness.Report("a", argparse.Namespace(out=path))
    report.add(
        {side: {RATE: rates, COST: [8, 8]} for side, rates in samples.items()}, {"ours": "peer"}
    )
    report.write()
    return path


def test_sides_take_turns_after_a_round_that_does_not_count():
    order = []

    def side(name):
        def sample():
            order.append(name)
            return {RATE: len(order)}

        return sample

    samples = harness.measure({"a": side("a"), "b": side("b")}, rounds=2)
    assert "".join(order) == "baabba"  # Every second round in reverse order.
    assert samples == {"a": {RATE: [3, 6]}, "b": {RATE: [4, 5]}}


def test_a_result_file_has_all_that_a_reader_needs(tmp_path):
    path = write(tmp_path / "a.json", ours=[20.0, 40.0], peer=[10.0, 10.0])
    document = json.loads(path.read_text())
    assert set(document["about"]) == {
        *("benchmark", "date", "command", "cpu", "cores", "gpus", "load_at_start"),
        *("python", "versions"),
    }
    row = document["rows"][0]
    assert (row["figure"], row["unit"], row["better"]) == ("ours", "steps/s", "more")
    assert (row["median"], row["least"], row["most"]) == (30.0, 20.0, 40.0)
    assert row["samples"] == [20.0, 40.0]
    assert (row["peer"], row["ratio"]) == ("peer", {"median": 3.0, "least": 2.0, "most": 4.0})


def test_a_ratio_above_one_is_always_better():
    made = harness.row("ours", COST, [2.0, 4.0], "peer", [8.0, 8.0])
    assert (made["ratio"]["least"], made["ratio"]["most"]) == (2.0, 4.0)
    assert "ratio" not in harness.row("ours", COST, [0.0, 4.0], "peer", [8.0, 8.0])


def test_regressions_are_printed_beyond_five_percent(tmp_path, monkeypatch, capsys):
    for folder, rates in (("before", [20.0, 30.0]), ("after", [10.0, 18.0])):
        write(tmp_path / folder / "a.json", ours=rates, peer=[10.0, 10.0])
    capsys.readouterr()
    for words, status, printed in (
        (("before", "after"), 1, "a: ours [steps/s]: 2.5 -> 1.4 x peer, -44%\n"),
        (("after", "before"), 0, "nothing is more than 5% slower in 1 files\n"),
    ):
        monkeypatch.setattr("sys.argv", ["compare", *(str(tmp_path / word) for word in words)])
        assert compare.main() == status
        assert capsys.readouterr().out == printed


def test_a_table(tmp_path):
    write(tmp_path / "a.json", ours=[20.0, 40.0], peer=[10.0, 10.0])
    text = "# A\n<!-- bench: a; steps/s; bytes; only o* | q* -->\nold\n<!-- end of bench -->\n"
    lines = tables.rewrite(text, tmp_path, "results").splitlines()
    assert (lines[0], lines[-1]) == ("# A", "<!-- end of bench -->")
    assert "](results/a.json): median (least to most) of 2 rounds" in lines[2]
    assert lines[4:-1] == [
        "|  | steps/s | compared | bytes | compared |",
        "| --- | --- | --- | --- | --- |",
        "| ours | 30 (20 to 40) | 3.00 x peer (2.00 to 4.00) | 8 | 1.00 x peer (1.00 to 1.00) |",
    ]


@pytest.mark.parametrize("path", tables.documents(), ids=lambda path: path.name)
def test_committed_tables_are_those_of_the_result_files(path):
    link = os.path.relpath(harness.RESULTS, path.parent)
    made = tables.rewrite(path.read_text(), harness.RESULTS, link)
    assert made == path.read_text(), "run: python -m bench.tables"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_committed_result_files_are_whole(path):
    document = json.loads(path.read_text())
    benchmark = document["about"]["benchmark"]
    # A file from another machine has the kind of machine in its name, too.
    assert path.stem == benchmark or path.stem.startswith(f"{benchmark}_")
    assert f"python -m bench.{benchmark}" in document["about"]["command"]
    assert [row for row in document["rows"] if len(row["samples"]) < harness.ROUNDS] == []


def test_every_benchmark_is_in_the_suite_or_says_why_not():
    names = {path.stem for path in (harness.ROOT / "bench").glob("*.py")} - TOOLS
    assert names - set(suite.SUITE) - set(suite.NOT_IN_THE_SUITE) == set()
    assert set(suite.SUITE) <= names
    assert sum(suite.SUITE.values()) <= 1800


@pytest.mark.parametrize("name", [name for name in suite.SUITE if name != "peers"])
def test_a_benchmark_says_how_to_run_it_and_uses_the_harness(name):
    text = (harness.ROOT / "bench" / f"{name}.py").read_text()
    assert re.search(rf"^    python -m bench\.{name}$", ast.get_docstring(ast.parse(text)), re.M)
    assert f'harness.parser("{name}", __doc__)' in text
    assert f'harness.Report("{name}", options)' in text
