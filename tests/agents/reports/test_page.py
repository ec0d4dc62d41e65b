"""The page shows the figures of the runs, and is self-contained."""

import base64
import errno
import html
import os
import pathlib
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from agents.cli import report
from agents.reports import page, reading
from rl_replicator.errors import UsageError
from rl_replicator.runs import events, statistics
from rl_replicator.runs.metrics import MetricWriter

_VOID = ("meta", "link", "img", "br")


class _Document(HTMLParser):
    """Checks that elements are closed in order; collects attributes, and the text by section."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.texts, self.tags = [], [], {}, []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, name in self.open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data + " "

    def section(self, name):
        return " ".join(self.texts[name].split())


def _render(run_dirs, film_bytes=1e6, **settings):
    return page.render(reading.read(run_dirs), film_bytes, **settings)


@pytest.fixture
def run_dirs(make_run):
    """Two configs with two seeds each."""
    shares = {
        "actor_environment": 0.6,
        "actor_policy": 0.2,
        "learner_step": 0.5,
        "learner_wait": 0.4,
    }
    found = []
    for n_step, gain in ((5, 300.0), (1, 100.0)):
        for seed in (1, 2):
            returns = {100: gain / 2, 200: gain + 10 * seed}
            name = f"n{n_step}-seed{seed}"
            found.append(make_run(name, returns, seed=seed, time=shares, n_step=n_step))
    return found


def test_it_shows_the_figures_of_the_runs(run_dirs):
    document = _Document(_render(run_dirs))
    assert document.section("head").startswith("d4pg on a:b 4 runs · 2 configs · 1 task · 2 seeds")
    interval = statistics.bootstrap(statistics.mean, [np.array([310.0, 320.0])])
    expected = f"a:b A 200 {interval.value:.0f} [{interval.low:.0f}, {interval.high:.0f}] 2 310 to"
    assert expected in document.section("results")
    assert "A − B 1 200 200 [190, 210] 1 [1, 1] A is higher" in document.section("results")
    assert "environment 60% policy 20% other 20%" in document.section("time")
    assert "Bottleneck: the actors; the largest part of their work is t" in document.section("time")
    assert "agent.n_step 5 1" in document.section("settings")
    assert document.section("runs").count("complete") == 4
    assert "No return stagnated" in document.section("advice")


def test_runs_of_one_seed_count_once(make_run):
    again = [make_run(name, {200: value}, seed=1) for name, value in (("x", 10.0), ("y", 30.0))]
    results = _Document(_render(again)).section("results")
    assert "a:b 200 20 2 runs of 1 seed – 20 @ 200" in results


def test_the_chart_draws_mean_and_band(run_dirs):
    text = _render(run_dirs[:2])
    labels = [value for key, value in _Document(text).attributes if key == "aria-label"]
    assert "a:b, episode return over environment steps. At the end: d4pg: 315" in labels
    assert text.count("fill: var(--c0); fill-opacity") == 1
    alone = _render(run_dirs[:1])
    assert "stroke: var(--c0)" in alone and "fill: var(--c0); fill-opacity" not in alone
    assert "#c0ffe" not in text + alone


def test_it_needs_nothing_but_itself(run_dirs):
    for text in (_render(run_dirs), _render(run_dirs, seconds_to_refresh=2)):
        document = _Document(text)
        names = [value for key, value in document.attributes if key == "id"]
        assert len(names) == len(set(names))
        links = [value for key, value in document.attributes if key in ("href", "src", "action")]
        assert [one for one in links if not one.startswith(("#", "data:"))] == []
        assert {one[1:] for one in links if one.startswith("#")} <= set(names)
        assert not re.search(r"url\((?!#)", text) and "@import" not in text


def test_names_are_text(make_run):
    name = "<script>alert(1)</script>&\"'"
    text = _render([make_run("one", {100: 1.0}, env=name, layers=name)])
    assert "script" not in _Document(text).tags
    assert name in html.unescape(_Document(text).section("results"))


def test_names_that_are_no_utf8(make_run):
    text = _render([make_run(os.fsdecode(b"caf\xe9"), {100: 1.0})])
    assert "caf?" in _Document(text).section("runs")
    text.encode()


def test_runs_of_learners(make_learner_run):
    losses = {step: 1.0 / step for step in range(1, 21)}
    document = _Document(_render([make_learner_run("one", losses, {10: 0.5, 20: 0.75})]))
    assert "20 0.75 1 – 0.75 @ 20" in document.section("results")
    assert "loss" in document.section("training")
    assert not {"time", "advice", "films"} & set(document.texts)


@pytest.mark.parametrize(
    ("is_highest_best", "best", "tile"),
    [
        (True, "9 @ 10", "C Highest accuracy 8"),
        (False, "3 @ 20", "A Lowest accuracy 3"),
    ],
)
def test_the_direction_of_the_score_decides_which_is_best(
    make_learner_run, is_highest_best, best, tile
):
    runs = [
        make_learner_run(
            f"w{width}", {}, {10: 9.0, 20: last}, width=width, is_highest_best=is_highest_best
        )
        for width, last in ((1, 3.0), (2, 5.0), (3, 8.0))
    ]
    document = _Document(_render(runs))
    assert f"A 20 3 1 – {best}" in document.section("results")
    assert tile in document.section("glance")


def test_figures_of_agents_and_learners_have_charts_of_their_own(make_run, make_learner_run):
    """Their steps do not mean the same."""
    run = make_run("one", {})
    writer = MetricWriter(run, "environment_steps")
    for step, loss in ((100, 2.0), (3000, 1.0)):
        writer.write("actor", step, {"episode_return": 1.0})
        writer.write("learner", step, {"loss": loss})
    writer.close()
    text = _render([run, make_learner_run("two", {10: 2.0, 20: 1.0}, {20: 0.5})])
    titles = _Document(text).section("training")
    assert "loss over environment steps" in titles and "loss over steps" in titles


def test_a_chart_of_several_configs_of_a_learner_is_named_by_what_they_share(make_learner_run):
    runs = [make_learner_run(f"w{width}", {}, {20: 1.0}, width=width) for width in (1, 2)]
    assert "<b>spirals</b>" in _render(runs) and "<b>width 1</b>" not in _render(runs)


def test_a_chart_of_a_single_config_of_a_learner_has_its_name(make_learner_run):
    runs = [make_learner_run(f"w{width}", {}, {20: 1.0}, width=width) for width in (1, 2)]
    runs.append(make_learner_run("new", {10: 1.0, 20: 0.5}, {}, width=3))
    text = _render(runs)
    assert "<b>spirals</b>" in text and "<b>width 3</b>" in text


def test_a_config_without_an_evaluation_hides_no_result(make_learner_run):
    runs = [make_learner_run(f"w{width}", {}, {20: 1.0 * width}, width=width) for width in (1, 2)]
    document = _Document(_render([*runs, make_learner_run("new", {10: 1.0}, {}, width=3)]))
    assert "B Highest accuracy 2" in document.section("glance")
    assert "C width 3 1 seed" in document.section("curves")
    assert "– C 10 1 1 – –" in document.section("results")


def test_the_best_config_is_shown_before_the_first_evaluation(make_run):
    runs = []
    for n_step in (1, 3, 5):
        runs.append(make_run(f"n{n_step}", {}, n_step=n_step))
        writer = MetricWriter(runs[-1], "environment_steps")
        writer.write("actor", 20, {"episode_return": 10.0 * n_step})
        writer.close()
    tile = "C Highest episode return (training) 50 1 seed"
    assert tile in _Document(_render(runs)).section("glance")


def test_a_figure_without_a_direction_has_no_best_value(make_learner_run):
    runs = [
        make_learner_run(f"w{width}-{seed}", {}, {20: 0.25 * width}, seed=seed, width=width)
        for width in (1, 2, 3)
        for seed in (1, 2)
    ]
    document = _Document(page.render(reading.read(runs, "loss"), 1e6))
    assert "A 20 0.75 [0.75, 0.75] 2 0.75 to 0.75 – " in document.section("results")
    assert "0.25 [0.25, 0.25] – A is higher" in document.section("results")
    assert "est loss" not in document.section("glance")


def test_advice_and_what_is_left_out(make_run, tmp_path):
    still = make_run("still", dict.fromkeys(range(10, 100, 10), 5.0), learner={"q_mean": 1.0})
    document = _Document(_render([still, tmp_path / "none"]))
    assert "still The return did not rise over the last third" in document.section("advice")
    left_out = f"Left out {tmp_path / 'none'}: expected the directory of a run"
    assert left_out in document.section("runs")


def test_figures_are_compared_only_at_steps_of_both(make_run):
    runs = [
        make_run("one", {100: 1.0, 200: 2.0}, n_step=1),
        make_run("late", {900: 9.0}, seed=2, n_step=1),
        make_run("again", {150: 2.0}, seed=3, n_step=1),
        make_run("other", {500: 5.0}, n_step=5),
    ]
    document = _Document(_render(runs))
    assert "A − B 0 – – – no steps in common" in document.section("results")
    assert "late: expected evaluations of seed 2 on a:b at steps of its" in document.section("runs")


def test_a_pair_names_the_step_at_which_it_is_compared(make_run):
    runs = [
        make_run("long", {100: 1.0, 200: 9.0}, n_step=1),
        make_run("short", {100: 3.0}, n_step=5),
        make_run("long-c", {100: 1.0, 200: 9.0}, env="c:d", n_step=1),
        make_run("short-c", {200: 3.0}, env="c:d", n_step=5),
    ]
    results = _Document(_render(runs[:2])).section("results")
    assert "a:b A 200 9 1" in results and "a:b B 100 3 1" in results
    assert "A − B 1 100 -2 – one seed: no interval" in results
    assert "A − B 2 100 to 200 2 – one seed" in _Document(_render(runs)).section("results")


def test_faults_survived(make_run):
    run = make_run("one", {100: 1.0})
    for node, event in (("run", "started"), ("run", "continued"), ("actor/0", "restarted")):
        events.record(run, node, event, "ProcessDied: signal 9" if node != "run" else "")
    document = _Document(_render([run]))
    assert "Faults survived 2" in document.section("glance")
    assert "2 faults survived. 3 events" in document.section("faults")
    assert "one actor/0 restarted ProcessDied: signal 9" in document.section("faults")


def test_a_run_in_the_working_directory_has_a_name(make_run, monkeypatch):
    run = make_run("one", dict.fromkeys(range(10, 100, 10), 5.0))
    events.record(run, events.RUN, events.STARTED)
    (run / "evaluation.mp4").write_bytes(bytes(100))
    monkeypatch.chdir(run)
    document = _Document(_render([pathlib.Path()]))
    assert "one: newest policy" in document.section("films")
    assert "one run started" in document.section("faults")
    assert "one The return did not rise" in document.section("advice")


def test_films_up_to_a_size(make_run):
    run = make_run("one", {100: 1.0})
    (run / "films").mkdir()
    for name, size in (("evaluation", 600), ("films/000000100", 500), ("films/000000050", 300)):
        (run / f"{name}.mp4").write_bytes(bytes(size))
    (run / "films" / ".000000150.partial.mp4").write_bytes(bytes(10))  # It is being made.
    text = _render([run], film_bytes=1000)
    films = re.findall(r'<video src="data:video/mp4;base64,([\w+/=]+)#t=0.01"', text)
    assert [len(base64.b64decode(film)) for film in films] == [600, 300]
    shown = _Document(text).section("films")
    assert "one: newest policy" in shown and "one: 50 steps" in shown
    assert f"cannot be read {run}/films/000000100.mp4 (0 kB)" in shown


def test_films_that_cannot_be_read_are_named(make_run, monkeypatch):
    run = make_run("one", {100: 1.0})
    (run / "films").mkdir()
    (run / "evaluation.mp4").mkdir()
    assert "films" not in _Document(_render([run], film_bytes=10_000)).texts
    refused = run / "films/000000100.mp4"
    for path in (refused, run / "films/000000050.mp4"):
        path.write_bytes(bytes(300))
    read = pathlib.Path.read_bytes

    def refuse(self):
        if self == refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return read(self)

    monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
    shown = _Document(_render([run], film_bytes=10_000)).section("films")
    assert "one: 50 steps" in shown and "one: 100 steps" not in shown
    assert f"cannot be read {refused}: Permission denied" in shown


def test_the_newest_image_is_the_one_of_most_steps(make_run):
    run = make_run("one", {100: 1.0})
    (run / "samples").mkdir()
    for steps in ("9999999", "10000000"):
        (run / "samples" / f"{steps}.png").write_bytes(b"image")
    shown = _Document(_render([run], film_bytes=1000)).section("films")
    assert "samples, 10,000,000 steps" in shown and "9,999,999" not in shown


def test_the_command(run_dirs, tmp_path, capsys):
    out, missing = tmp_path / "deep" / "report.html", tmp_path / "none"
    assert report.run([*map(str, run_dirs), str(missing), "--out", str(out)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"left out {missing}: expected the directory of a run, but there is no")
    assert second == str(out)
    _Document(out.read_text())
    with pytest.raises(UsageError, match="^expected the directory of a run, but there is no "):
        report.run([str(missing), "--out", str(out)])
    with pytest.raises(SystemExit, match="2"):
        report.run([str(run_dirs[0]), "--out", "report.pdf"])
    with pytest.raises(UsageError, match="cannot write the report to"):
        report.run([str(run_dirs[0]), "--out", str(run_dirs[0] / "config.json" / "r.html")])


FULL = """
import resource, sys
from agents.cli import report
from rl_replicator.errors import DiskError

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))  # Python ignores the signal.
try:
    report.run(sys.argv[1:])
except DiskError as error:
    print(error)
"""


@pytest.mark.processes
def test_a_report_that_cannot_be_written_leaves_the_one_before(run_dirs, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    out = folder / "report.html"
    out.write_text("before")
    words = [str(run_dirs[0]), "--out", str(out)]
    child = subprocess.run(
        [sys.executable, "-c", FULL, *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    assert re.match("cannot write the report to .*File too large", child.stdout)
    assert out.read_text() == "before" and list(folder.iterdir()) == [out]
    link = tmp_path / "link.html"
    link.symlink_to(out)
    assert report.run([*words[:-1], str(link)]) == 0
    assert link.is_symlink() and out.read_text().startswith("<!doctype html>")
