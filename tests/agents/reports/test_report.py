"""The page shows the figures of the runs, and is self-contained; `report` and `watch`."""

import base64
import contextlib
import dataclasses
import html
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from agents.cli import reports
from agents.config import resolved
from agents.reports import page, reading
from rl_replicator.cli import trainables
from rl_replicator.errors import DiskError, UsageError
from rl_replicator.runs import events, statistics
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.run_directory import RunDirectory
from tests.waiting import wait_until

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


def rows(run, axis, group, figures):
    """Writes figures of a run: {step: {name: value}}."""
    with contextlib.closing(MetricWriter(run, axis)) as writer:
        for step, values in figures.items():
            writer.write(group, step, values)
    return run


@pytest.fixture
def make_run(tmp_path):
    """Makes a run of an agent: `make_run(name, {step: return}, time=..., **agent)`."""

    def make(name, returns, *, seed=1, env="a:b", time=None, **agent):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir(parents=True)
        options = {"env": env, "seed": seed, "steps": 200, "actors": 1, "agent": agent}
        score = Score("evaluator", "episode_return").plain()
        run.describe("d4pg", {"env": env, "seed": seed, "agent": agent}, options, score)
        for step, value in returns.items():
            figures = {"episode_return_min": value - 1, "episode_return_max": value + 1}
            figures = {"episode_return": value, **figures}
            rows(run.path, "environment_steps", "evaluator", {step: figures})
            learner = {"learner_steps": step, "q_mean": 1.0}
            rows(run.path, "environment_steps", "learner", {step: learner})
            if time:
                rows(run.path, "environment_steps", "time", {step: time})
        return run.path

    return make


@pytest.fixture
def make_learner_run(tmp_path):
    """Makes a run of a learner: `make_learner_run(name, {step: loss}, {step: accuracy})`.

    The first figure of its evaluations is their loss, 1 - accuracy.
    """

    def make(name, losses, accuracies, seed=1, width=8, is_highest_best=True):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir(parents=True)
        score = Score("evaluation", "accuracy", is_highest_best, end=20).plain()
        run.describe("spirals", {"config": {"seed": seed, "width": width}}, {}, score)
        rows(run.path, "steps", "train", {step: {"loss": loss} for step, loss in losses.items()})
        found = {step: {"loss": 1 - x, "accuracy": x} for step, x in accuracies.items()}
        return rows(run.path, "steps", "evaluation", found)

    return make


@pytest.fixture
def run_dirs(make_run):
    """Two configs with two seeds each."""
    shares = {"actor_environment": 0.6, "actor_policy": 0.2}
    shares |= {"learner_step": 0.5, "learner_wait": 0.4}
    found = []
    for n_step, gain in ((5, 300.0), (1, 100.0)):
        for seed in (1, 2):
            returns = {100: gain / 2, 200: gain + 10 * seed}
            name = f"n{n_step}-seed{seed}"
            found.append(make_run(name, returns, seed=seed, time=shares, n_step=n_step))
    return found


def test_it_shows_the_figures_of_the_runs(run_dirs, tmp_path):
    run = run_dirs[0]
    for node, event in (("run", "started"), ("run", "continued"), ("actor/0", "restarted")):
        events.record(run, node, event, "ProcessDied: signal 9" if node != "run" else "")
    text = _render([*run_dirs, tmp_path / "none"], seconds_to_refresh=2)
    document = _Document(text)
    assert document.section("head").startswith("d4pg on a:b 4 runs · 2 configs · 1 task · 2 seeds")
    interval = statistics.bootstrap(statistics.mean, [np.array([310.0, 320.0])])
    expected = f"a:b A 200 {interval.value:.0f} [{interval.low:.0f}, {interval.high:.0f}] 2 310 to"
    assert expected in document.section("results")
    assert "A − B 1 200 200 [190, 210] 1 [1, 1] A is higher" in document.section("results")
    assert "environment 60% policy 20% other 20%" in document.section("time")
    assert (
        "Bottleneck: the actors; the largest part of their work is environment"
        in document.section("time")
    )
    assert "agent.n_step 5 1" in document.section("settings")
    assert document.section("runs").count("complete") == 4
    assert f"Left out {tmp_path / 'none'}: expected the directory of a" in document.section("runs")
    assert "No return stagnated" in document.section("advice")
    assert "A n step 5 2 seeds B n step 1 2 seeds" in document.section("curves")
    assert "A Episode return 315 2 seeds, 95 %: 310 to 320" in document.section("glance")
    assert "Faults survived 2" in document.section("glance")
    assert "2 faults survived. 3 events" in document.section("faults")
    assert "n5-seed1 actor/0 restarted ProcessDied: signal 9" in document.section("faults")
    # It needs nothing but itself.
    names = [value for key, value in document.attributes if key == "id"]
    assert len(names) == len(set(names))
    links = [value for key, value in document.attributes if key in ("href", "src", "action")]
    assert [one for one in links if not one.startswith(("#", "data:"))] == []
    assert {one[1:] for one in links if one.startswith("#")} <= set(names)
    assert not re.search(r"url\((?!#)", text) and "@import" not in text
    # The chart draws a mean and a band of several seeds, in colours of the style sheet.
    labels = [value for key, value in document.attributes if key == "aria-label"]
    assert "a:b, episode return over environment steps. At the end: A: 315; B: 115" in labels
    assert text.count("fill: var(--c0); fill-opacity") == 1 and "#c0ffe" not in text
    assert "fill: var(--c0); fill-opacity" not in _render(run_dirs[:1])


def test_names_are_text(make_run):
    name = "<script>alert(1)</script>&\"'"
    text = _render([make_run(os.fsdecode(b"caf\xe9"), {100: 1.0}, env=name, layers=name)])
    document = _Document(text)
    assert "script" not in document.tags and "caf?" in document.section("runs")
    assert name in html.unescape(document.section("results"))
    text.encode()


@pytest.mark.parametrize(
    ("is_highest_best", "best", "tile"),
    [(True, "9 @ 10", "C Highest accuracy 8"), (False, "3 @ 20", "A Lowest accuracy 3")],
)
def test_runs_of_learners(make_learner_run, is_highest_best, best, tile):
    """The direction of the score decides which config is best."""
    runs = [
        make_learner_run(
            f"w{width}", {10: 2.0, 20: 1.0}, {10: 9.0, 20: last}, 1, width, is_highest_best
        )
        for width, last in ((1, 3.0), (2, 5.0), (3, 8.0))
    ]
    document = _Document(_render(runs))
    assert f"A 20 3 1 – {best}" in document.section("results")
    assert tile in document.section("glance") and "loss" in document.section("training")
    assert not {"time", "advice", "films"} & set(document.texts)
    document = _Document(page.render(reading.read(runs, "loss"), 1e6))
    assert "A 20 -2 1 – – " in document.section("results")
    assert "est loss" not in document.section("glance")


def test_figures_are_compared_only_at_steps_of_both(make_run):
    runs = [
        make_run("one", {100: 1.0, 200: 9.0}, n_step=1),
        make_run("late", {900: 9.0}, seed=2, n_step=1),
        make_run("again", {150: 2.0}, seed=3, n_step=1),
        make_run("other", {500: 5.0}, n_step=5),
    ]
    found = reading.read(runs)
    assert "none at steps of its other seeds" in found.left_out[runs[1]]
    document = _Document(page.render(found, 1e6))
    assert "A − B 0 - - - no steps in common" in document.section("results")


def test_advice_and_films_of_the_run_in_the_working_directory(make_run, monkeypatch):
    run = make_run("one", dict.fromkeys(range(10, 100, 10), 5.0))
    for folder in ("films", "samples"):
        (run / folder).mkdir()
    for name, size in (("evaluation", 600), ("films/000000100", 500), ("films/000000050", 200)):
        (run / f"{name}.mp4").write_bytes(bytes(size))
    (run / "films" / ".000000150.partial.mp4").write_bytes(bytes(10))  # It is being made.
    for steps in ("9999999", "10000000"):  # Of a learner; the newest is that of most steps.
        (run / "samples" / f"{steps}.png").write_bytes(b"image")
    (run / "films" / "000000200.mp4").symlink_to("films")  # It cannot be read.
    monkeypatch.chdir(run)
    text = _render([pathlib.Path()], film_bytes=1000)
    document = _Document(text)
    assert "one The return did not rise over the last third" in document.section("advice")
    films = re.findall(r'<video src="data:video/mp4;base64,([\w+/=]+)#t=0.01"', text)
    assert [len(base64.b64decode(film)) for film in films] == [600, 200]
    shown = document.section("films")
    assert "one: newest policy" in shown and "one: 50 steps" in shown
    assert "samples, 10,000,000 steps" in shown and "9,999,999" not in shown
    assert "films/000000100.mp4 (0 kB)" in shown and "films/000000200.mp4: " in shown


def test_starts_that_returns_depend_on(make_run):
    run = make_run("one", {100: 1.0, 200: 450.0})
    with contextlib.closing(MetricWriter(run, "environment_steps")) as writer:
        for height in np.linspace(-1, 1, 20):
            start = {"start/height": height, "episode_return": 900.0 if height > 0 else 3.0}
            writer.write_rows("starts", 200, [start])
    shown = _Document(_render([run])).section("results")
    assert "one height up to -0.0526 10 3 3 to 3" in shown
    assert "one height above -0.0526 10 900 900 to 900" in shown


def test_training_stands_in_until_a_run_is_evaluated(make_run):
    runs = []
    for n_step in (1, 3, 5):
        run = make_run(f"n{n_step}", {}, n_step=n_step)
        figures = {"episode_return": 10.0 * n_step}
        runs.append(rows(run, "environment_steps", "actor", {20: figures}))
    tile = "C Highest episode return (training) 50 1 seed"
    assert tile in _Document(_render(runs)).section("glance")
    rows(runs[0], "environment_steps", "evaluator", {100: {"episode_return": 3.0}})
    found = reading.read(runs)
    assert found.labels == ("environment steps", "episode return")
    assert list(found.places) == [0, None, None] and len(found.runs) == 3
    assert "n3" in _Document(page.render(found, 1e6)).section("runs")


def test_runs_of_another_figure_are_left_out(make_run, make_learner_run, tmp_path):
    """As are those that cannot be read, each with its reason in one line."""
    good, other = make_run("good", {100: 10.0}), make_learner_run("other", {}, {20: 0.5})
    bad = {
        "config.json": ("{", "expected a run's settings in "),
        "metrics/evaluator.csv": ("\0\n", "expected whole files, got "),
    }
    for number, (file, (content, _)) in enumerate(bad.items()):
        (make_run(str(number), {100: 1.0}) / file).write_text(content)
    empty = make_run("empty", {})
    assert "Waiting for metrics" in _render([empty])
    found = reading.read([good, other, tmp_path / "0", tmp_path / "1", empty])
    assert [run.path for run in found.runs] == [good]
    reasons = [*found.left_out.values()]
    assert [told in why for (_, told), why in zip(bad.values(), reasons, strict=False)] == [
        True
    ] * 2
    assert reasons[2:] == [
        "it has no metrics yet",
        "accuracy over steps cannot be drawn beside episode return over environment steps; report "
        "it on its own",
    ]
    assert "\n" not in "".join(reasons)
    curve = reading.read([good], "episode_return_max").configs[0].curves["a:b"]
    assert curve.values == [[11.0]]


def test_when_a_run_is_complete(make_run, make_learner_run):
    """At its number of steps, or at the end that its score names, or once it has finished."""
    runs = [make_run("a", {200: 1.0}), make_run("b", {100: 1.0})]
    runs += [make_learner_run("c", {}, {20: 0.5}), make_learner_run("d", {}, {10: 0.5})]
    assert [reading.read([run]).runs[0].is_complete for run in runs] == [True, False, True, False]
    config = json.loads((runs[3] / "config.json").read_text())
    (runs[3] / "config.json").write_text(json.dumps({**config, "score": None}))
    told = (events.STARTED, events.FINISHED, events.CONTINUED, events.FINISHED)
    for event, is_complete in zip(told, (False, True, False, True), strict=True):
        events.record(runs[3], events.RUN, event)
        assert reading.read([runs[3]]).runs[0].is_complete == is_complete


def test_the_action_repeats_of_tasks_make_no_configs(tmp_path):
    """The discount of an action follows from its length unless the user sets one."""
    runs = []
    for env, repeat, agent in (
        ("cartpole:swingup", None, {}),
        ("cheetah:run", None, {}),
        ("walker:walk", 4, {}),
        ("cartpole:swingup", None, {"discount": 0.99}),
        ("cheetah:run", None, {"discount": 0.99}),
    ):
        plain = {"env": env, "pixels": True, "action_repeat": repeat, "agent": agent}
        options = trainables.load("d4pg").options_from(plain)
        found = resolved(options.agent, {}, options.task.action_repeat)
        identity = dataclasses.replace(options, agent=found).identity
        run = RunDirectory(tmp_path / str(len(runs)))
        run.path.mkdir()
        run.describe("d4pg", identity, options.plain(), options.score.plain())
        figures = {100: {"episode_return": 1.0}}
        runs.append(rows(run.path, "environment_steps", "evaluator", figures))
    assert list(reading.read(runs).places) == [0, 0, 1, 2, 2]


def test_the_command(run_dirs, tmp_path, capsys, monkeypatch):
    out, missing = tmp_path / "deep" / "report.html", tmp_path / "none"
    assert reports.report([*map(str, run_dirs), str(missing), "--out", str(out)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"left out {missing}: expected the directory of a run, but there is no")
    assert second == str(out)
    _Document(out.read_text())
    with pytest.raises(UsageError, match="^expected the directory of a run, but there is no "):
        reports.report([str(missing), "--out", str(out)])
    with pytest.raises(UsageError, match="cannot write the report to"):
        reports.report([str(run_dirs[0]), "--out", str(run_dirs[0] / "config.json" / "r.html")])
    # A full disk leaves the report that is there.
    before, write = out.read_text(), pathlib.Path.write_text

    def fill(self, text, *args):
        write(self, text[:100], *args)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", fill)
    with pytest.raises(DiskError, match="cannot write the report to .*No space left"):
        reports.report([str(run_dirs[0]), "--out", str(out)])
    assert out.read_text() == before and list(out.parent.iterdir()) == [out]


CODE = "import sys; from agents.cli import reports; sys.exit(reports.watch(sys.argv[1:]))"


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_watch_follows_the_run_and_serves_nothing_else_until_ctrl_c(make_run):
    run = make_run("one", {100: 12.0})
    command = [sys.executable, "-c", CODE, str(run), "--port", "0", "--refresh", "0.2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with contextlib.ExitStack() as stack:
        watching = subprocess.Popen(command, text=True, **pipes)
        stack.callback(watching.communicate)
        stack.callback(watching.kill)
        line = watching.stdout.readline()
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", line)[1])

        def get(path="/", host="localhost:9000"):  # The port of a tunnel.
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        status, text = get()
        assert status == 200 and "<b>12</b>" in text
        assert '<meta http-equiv="refresh" content="0.2">' in text
        for path in ("/config.json", "/../one/config.json", "/%2e%2e/one/config.json"):
            assert get(path)[0] == 404
        for host in ("attacker.example", "127.0.0.1.attacker.example:80"):
            assert get(host=host)[0] == 403
        rows(run, "environment_steps", "evaluator", {150: {"episode_return": 34.0}})
        wait_until(lambda: "<b>34</b>" in get()[1], 240, pause=0.2)
        with pytest.raises(UsageError, match=rf"--port: expected a free port, got {port} \(Addre"):
            reports.watch([str(run), "--port", str(port)])
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=60)
        assert (watching.returncode, out.strip(), err) == (0, "", "")
