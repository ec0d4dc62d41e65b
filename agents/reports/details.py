"""The later sections of a report: time, training, films, settings, advice and the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.reports import figures, films
from agents.reports.blocks import config_name, hint, section, sentence, table
from agents.reports.charts import Line, chart, split_bar
from agents.reports.markup import Child, Html, element
from agents.reports.overview import config_names
from agents.reports.reading import Reading, ReportedRun
from agents.runs import advice, bottleneck
from rl_replicator.runs import events, plots
from rl_replicator.runs.plots import EvaluatedRun
from rl_replicator.runs.progress_line import clock
from rl_replicator.runs.selection import LeftOut

# CSS classes of the parts of time; waiting is grey.
_PART_CLASSES = {
    "environment": "p0",
    "rendering": "p1",
    "policy": "p2",
    "insertion": "p3",
    "steps": "p0",
    "priorities": "p1",
    "weights": "p2",
    "checkpoints": "p3",
    "waiting": "p-wait",
}
# Counters, which only grow.
_COUNTERS = ("learner_steps",)
_KINDS = {"actor": "Actors", "learner": "Learner"}
_MOST_DETAILS = 24
# The events are collapsed if there are more faults than this.
_MOST_OPEN = 20


def where_time_went(reading: Reading) -> Html | None:
    """Returns how actors and learner of each config have spent their time, and the bottleneck."""
    names = config_names(reading)
    blocks = []
    for index, config in enumerate(reading.configs):
        timed = [(run, bottleneck.read_shares(run.path)) for run in reading.runs_of(index)]
        timed = [(run, shares) for run, shares in timed if len(bottleneck.parts(shares)) > 1]
        if timed:
            shares = _mean([shares for _, shares in timed])
            bars = [
                split_bar(_KINDS[kind], split, _PART_CLASSES)
                for kind, split in bottleneck.parts(shares).items()
            ]
            verdict = bottleneck.verdict(shares, timed[0][0].options)
            head = element("h3", config_name(index, config.label, names[index]))
            several = len(reading.configs) > 1
            blocks.append(
                element("article", head if several else None, bars, hint(sentence(verdict)))
            )
    if not blocks:
        return None
    about = "Shares of the time of actors and learner, the mean over the runs of a config."
    return section("time", "Where the time went", blocks, about=about)


def training(reading: Reading) -> Html | None:
    """Returns a small chart for each figure of training."""
    names = config_names(reading)
    details = [run.details() for run in reading.runs]
    found = dict.fromkeys((name, series.x_label) for one in details for name, series in one.items())
    shown = [key for key in found if key[0] not in _COUNTERS][:_MOST_DETAILS]
    names_shown = [name for name, _ in shown]
    several = len(reading.configs) > 1
    charts = []
    for name, x_label in shown:
        read = [
            (index, EvaluatedRun(run.settings, run.seed, one[name]))
            for index, run, one in zip(reading.places, reading.runs, details, strict=True)
            if name in one and one[name].x_label == x_label
        ]
        lines = []
        for index in sorted({index for index, _ in read}):
            label = reading.configs[index].label
            for curve in plots.merged([one for i, one in read if i == index]):
                task = str(curve.settings.get("env", "")) if len(reading.tasks) > 1 else ""
                text = " ".join(filter(None, (label if several else names[index], task)))
                lines.append(Line(label, text, index, curve.steps, curve.values.mean(axis=0)))
        # Agents and learners count different steps.
        over = f" over {x_label}" if names_shown.count(name) > 1 else ""
        charts.append(chart(lines, f"{name.replace('_', ' ')}{over}", x_label, "", is_small=True))
    if not charts:
        return None
    return section(
        "training",
        "Training",
        element("div", charts, class_="charts many"),
        about="What the learner recorded, the mean over seeds.",
    )


def faults_survived(reading: Reading) -> Html | None:
    """Returns the events of the runs, with the faults that they have survived marked."""
    rows: list[list[Child]] = []
    faults = 0
    for run in reading.runs:
        told = events.read(run.path)
        survived = events.faults(told)
        faults += len(survived)
        for event in told:
            is_fault = event in survived
            what = element("span", event.event, class_="state bad" if is_fault else "state")
            time = element("time", event.time.replace("T", " ").removesuffix("Z"))
            rows.append([time, run.name, event.node, what, event.detail or None])
    if not rows:
        return None
    whole = table(["time (UTC)", "run", "node", "event", "detail"], rows, ())
    words = f"{faults} fault{'' if faults == 1 else 's'} survived" if faults else "No fault"
    shown = element(
        "details", element("summary", f"{len(rows)} events"), whole, open_=0 < faults <= _MOST_OPEN
    )
    about = "Faults are restarted nodes, and continuations of runs that were killed or had failed."
    return section(
        "faults", "Faults", hint(f"{words}.", "" if faults else "good"), shown, about=about
    )


def shown_films(reading: Reading, most_bytes: float) -> Html | None:
    """Returns the films of the runs, and which are left out or cannot be read.

    Args:
      reading: what was read of the runs.
      most_bytes: size of all films together.
    """
    selection = films.select(reading.runs, most_bytes)
    if not selection.shown and not selection.left_out:
        return None
    left_out = None
    if selection.left_out:
        size = figures.size(sum(picture.size for picture in selection.left_out))
        left_out = element(
            "details",
            element(
                "summary",
                f"{len(selection.left_out)} left out ({size}), to keep all films under "
                f"{figures.size(most_bytes)}",
            ),
            element("ul", [element("li", films.describe(one)) for one in selection.left_out]),
        )
    shown, items = [], []
    for picture in selection.shown:
        try:
            shown.append(films.embedded(picture))
        except OSError as error:  # It is another user's, or has been removed.
            items.append(element("li", f"{picture.path}: {error.strerror}"))
    unreadable = element(
        "details", element("summary", f"{len(items)} cannot be read"), element("ul", items)
    )
    grid = element("div", shown, class_="films")
    return section(
        "films", "Films", grid if shown else None, left_out, unreadable if items else None
    )


def settings(reading: Reading) -> Html:
    """Returns the settings in which the configs differ, and those that they share."""
    configs = reading.configs
    names = plots.differing([config.identity for config in configs])
    body: list[Child] = []
    if names:
        head: list[Child] = [
            "setting",
            *(config_name(i, c.label, "") for i, c in enumerate(configs)),
        ]
        rows = [[_code(name), *(_value(c.identity.get(name)) for c in configs)] for name in names]
        body.append(table(head, rows, range(1, len(head))))
    shared = {
        name: value
        for name, value in configs[0].identity.items()
        if name not in names and not isinstance(value, Mapping)
    }
    rows = [[_code(name), _value(value)] for name, value in sorted(shared.items())]
    summary = f"{len(rows)} settings that all runs share" if names else f"{len(rows)} settings"
    body.append(
        element("details", element("summary", summary), table(["setting", "value"], rows, (1,)))
    )
    about = None if names else "All runs have the same settings, but for task and seed."
    title = "Differences of the configs" if names else "Settings"
    return section("settings", title, body, about=about)


def advised(reading: Reading) -> Html | None:
    """Returns the advice of the diagnostics for runs whose return stagnated or stayed low."""
    items = []
    evaluated = [run for run in reading.runs if "evaluator" in run.tables]
    for run in evaluated:
        lines = advice.advise(run.path, run.options)
        if lines:
            items.append(
                element(
                    "li",
                    element("b", run.name),
                    element("ul", [element("li", sentence(line)) for line in lines]),
                )
            )
    if not evaluated:
        return None
    if items:
        body = element("ul", items, class_="advice")
    else:
        body = hint(
            "No return stagnated or stayed low over the last third of at least six evaluations.",
            "good",
        )
    return section("advice", "Advice", body, about="For runs whose return stagnated or stayed low.")


def list_of_runs(reading: Reading) -> Html:
    """Returns a table of the runs, with their progress."""
    several = len(reading.configs) > 1
    rows: list[list[Child]] = []
    for place, run in zip(reading.places, reading.runs, strict=True):
        config = reading.configs[place]
        rate = run.steps / max(run.seconds, 1e-9)
        rows.append(
            [
                _code(str(run.path)),
                config_name(place, config.label, "") if several else None,
                run.task or "–",
                "–" if run.seed is None else str(run.seed),
                figures.steps(run.steps),
                _state(run, reading.read_at),
                clock(run.seconds),
                figures.number(rate),
            ]
        )
    head = ["run", "config" if several else None, "task", "seed", "steps", "state", "clock"]
    head.append("steps/s")
    runs = table(head, rows, (3, 4, 6, 7)) if rows else None
    return section("runs", "Runs", runs, _left_out(reading.left_out))


def _left_out(left_out: Sequence[LeftOut]) -> Html | None:
    if not left_out:
        return None
    items = [element("li", str(one)) for one in left_out]
    return element("div", element("h3", "Left out"), element("ul", items), class_="left-out")


def _state(run: ReportedRun, now: float) -> Html:
    if run.is_complete:
        return element("span", "complete", class_="state good")
    share = "" if run.total_steps is None else f"{min(run.steps / run.total_steps, 1):.0%}, "
    return element("span", f"{share}written {figures.ago(now - run.written)}", class_="state")


def _mean(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in shares for name in one)
    return {name: float(np.mean([one.get(name, 0.0) for one in shares])) for name in names}


def _code(text: str) -> Html:
    return element("code", text)


def _value(value: Any) -> str:
    """Writes a setting; one that a run of another version lacks is a dash."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value)
