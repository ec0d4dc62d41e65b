"""What the page says: the figures and texts of its sections, which `page.html` arranges."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from agents.reports import charts
from agents.reports.charts import Line, axis_number, chart
from agents.reports.reading import Family, Reading, ReportedRun
from agents.runs import advice
from rl_replicator.errors import UsageError
from rl_replicator.runs import comparison, events, plots, statistics
from rl_replicator.runs.plots import Curve, EvaluatedRun
from rl_replicator.runs.progress_line import clock

# Results of more configs are not shown as tiles.
_MOST_TILES = 2
_MEASURES = {"mean": statistics.mean, "interquartile mean": statistics.interquartile_mean}
# Figures of training that are counters, which only grow.
_COUNTERS = ("learner_steps",)
_MOST_DETAILS = 24
_WHOLE, _HALF, _SMALL = (8.6, 3.1), (5.2, 2.9), (3.0, 1.3)
# An option in a text, with its value if that is a number or in capitals.
_OPTION = re.compile(r"(--[\w.-]*\w(?: (?:[A-Z]+|\d+)\b)?)")


class Table(NamedTuple):
    """A table.

    Attributes:
      head: names of the columns.
      rows: the cells of each row, None for nothing.
      numeric: columns of numbers.
    """

    head: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    numeric: Sequence[int]


class Tile(NamedTuple):
    """One figure at a glance."""

    name: Any
    value: str
    about: str


class Plot(NamedTuple):
    """A chart with its title and the names of its axes."""

    title: str
    y_label: str
    x_label: str
    svg: Markup


def title(reading: Reading) -> str:
    """Returns the title of the report."""
    trained = list(dict.fromkeys(run.trainable for run in reading.runs))
    about = " and ".join(trained) if len(trained) <= 2 else f"{len(trained)} algorithms"
    tasks = reading.tasks
    if not tasks:
        return about or "Waiting for metrics"
    return f"{about} on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"


def counts(reading: Reading) -> str:
    """Returns how many runs, configs, tasks and seeds the report shows."""
    seeds = {run.seed for run in reading.runs if run.seed is not None}
    numbers = {
        "run": len(reading.runs),
        "config": len(reading.configs),
        "task": len(reading.tasks),
        "seed": len(seeds),
    }
    return " · ".join(_count(number, name) for name, number in numbers.items() if number)


def names(reading: Reading) -> list[str]:
    """Returns a short name for each config: the settings in which it differs from the others."""
    settings = [config.identity for config in reading.configs]
    labels = plots.short_labels(settings)
    # A single config differs from none.
    return [
        label or str(one.get("trainable", "")) for label, one in zip(labels, settings, strict=True)
    ]


def letter(reading: Reading, index: int) -> Markup | None:
    """Returns the letter of a config in its colour; None if there is only one config."""
    if len(reading.configs) < 2:
        return None
    style, label = f"letter c{index % charts.COLOURS}", reading.configs[index].label
    return Markup('<span class="{}">{}</span>').format(style, label)


def sentence(text: str) -> Markup:
    """Returns a text as a sentence, with its options in code style."""
    text = f"{text[:1].upper()}{text[1:].removesuffix('.')}."
    return Markup(_OPTION.sub(r"<code>\1</code>", str(escape(text))))


def tiles(reading: Reading) -> Iterator[Tile]:
    """Yields the most important figures."""
    yield from _result_tiles(reading)
    yield _progress_tile(reading)
    longest = max(reading.runs, key=lambda run: run.seconds)
    several = ", the longest run" if len(reading.runs) > 1 else ""
    rate = f"{statistics.number(longest.rate)} steps/s{several}"
    yield Tile("Clock", clock(longest.seconds), rate)
    limits = [
        explained[-1].removeprefix("bottleneck: ").partition(";")[0].partition(",")[0]
        for run in reading.runs
        if (explained := advice.explain(run.path, run.options))
    ]
    if limits:
        most = max(sorted(set(limits)), key=limits.count)
        yield Tile("Bottleneck", most, f"{limits.count(most)} of {_count(len(limits), 'run')}")
    survived = sum(len(events.faults(events.read(run.path))) for run in reading.runs)
    if survived:
        yield Tile("Faults survived", str(survived), "restarts and continuations")


def curves(reading: Reading) -> Iterator[tuple[list[Markup], list[Plot]]]:
    """Yields for each family its legend, and a chart for each task with a line for each config."""
    labels = names(reading)
    for first, family in reading.numbered_families():
        several = len(family.configs) > 1
        legend = []
        for index, config in enumerate(family.configs, first):
            seeds = sorted({curve.seeds for curve in config.curves.values()})
            text = " to ".join(dict.fromkeys((str(seeds[0]), str(seeds[-1]))))
            entry = Markup("{}{} <small>{} {}</small>").format(
                letter(reading, index) or "",
                labels[index],
                text,
                "seed" if seeds == [1] else "seeds",
            )
            legend.append(entry)
        shared = {str(config.identity.get("trainable", "")) for config in family.configs}
        trained = (
            (shared.pop() if len(shared) == 1 else family.y_label) if several else labels[first]
        )
        size = _WHOLE if len(family.tasks) == 1 else _HALF
        drawn = []
        for task in family.tasks:
            lines = [
                _line(index, config.label, labels[index], config.curves[task], reading)
                for index, config in enumerate(family.configs, first)
                if task in config.curves
            ]
            about = f"{task or trained}, {family.y_label} over {family.x_label}"
            svg = chart(lines, size, about)
            drawn.append(Plot(task or trained, family.y_label, family.x_label, svg))
        yield legend if len(reading.configs) > 1 else [], drawn


def results(reading: Reading) -> Iterator[tuple[Table, Table | None]]:
    """Yields for each family the table of its results, and that of its pairs of configs."""
    for first, family in reading.numbered_families():
        rows = [
            [task or "–", letter(reading, index), *_cells(config.curves[task])]
            for task in family.tasks
            for index, config in enumerate(family.configs, first)
            if task in config.curves
        ]
        for name, measure in _MEASURES.items():
            for index, config in enumerate(family.configs, first):
                if len(config.curves) > 1:
                    scores = _scores(config)
                    interval = str(statistics.bootstrap(measure, scores))
                    seeds = sum(map(len, scores))
                    about = f"{name} of {len(scores)} tasks"
                    rows.append([about, letter(reading, index), "", interval, seeds, "", ""])
        title = "config" if len(reading.configs) > 1 else ""
        head = ["task", title, "at", f"mean {family.y_label} [95 %]", "seeds", "range", "best"]
        yield Table(head, rows, (2, 3, 4, 5, 6)), _pairs(family)


def times(reading: Reading) -> Iterator[tuple[int, dict[str, dict[str, float]], Markup]]:
    """Yields for each config how actors and learner have spent their time, and the bottleneck."""
    for index in range(len(reading.configs)):
        timed = [(run, advice.read_shares(run.path)) for run in reading.runs_of(index)]
        timed = [(run, shares) for run, shares in timed if len(advice.parts(shares)) > 1]
        if timed:
            parts = dict.fromkeys(name for _, shares in timed for name in shares)
            mean = {
                part: float(np.mean([shares.get(part, 0.0) for _, shares in timed]))
                for part in parts
            }
            found = advice.parts(mean)
            for split in found.values():
                rest = 1.0 - sum(split.values())
                split.update({"other": rest} if rest >= 0.005 else {})
            yield index, found, sentence(advice.verdict(mean, timed[0][0].options))


def training(reading: Reading) -> Iterator[Plot]:
    """Yields a small chart for each figure of training."""
    labels, details = names(reading), [run.details() for run in reading.runs]
    found = dict.fromkeys((name, series.x_label) for one in details for name, series in one.items())
    shown = [key for key in found if key[0] not in _COUNTERS][:_MOST_DETAILS]
    for name, x_label in shown:
        read = [
            (index, EvaluatedRun(run.settings, run.seed, one[name]))
            for index, run, one in zip(reading.places, reading.runs, details, strict=True)
            if name in one and one[name].x_label == x_label
        ]
        lines = [
            Line("", labels[index], index, curve.steps, curve.values.mean(axis=0))
            for index in sorted({index for index, _ in read})
            for curve in plots.merged([one for i, one in read if i == index])
        ]
        # Agents and learners count different steps.
        over = f" over {x_label}" if [one for one, _ in shown].count(name) > 1 else ""
        about = f"{name.replace('_', ' ')}{over}"
        yield Plot(about, "", "", chart(lines, _SMALL, about))


def faults(reading: Reading) -> tuple[int, Table]:
    """Returns how many faults the runs have survived, and their events."""
    rows, count = [], 0
    for run in reading.runs:
        told = events.read(run.path)
        survived = events.faults(told)
        count += len(survived)
        for event in told:
            style = "state bad" if event in survived else "state"
            what = Markup('<span class="{}">{}</span>').format(style, event.event)
            time = event.time.replace("T", " ").removesuffix("Z")
            rows.append([time, run.name, event.node, what, event.detail])
    return count, Table(["time (UTC)", "run", "node", "event", "detail"], rows, ())


def advised(reading: Reading) -> list[tuple[str, list[Markup]]]:
    """Returns the names of the runs whose return stagnated or stayed low, and the advice."""
    found = [(run.name, advice.advise(run.path, run.options)) for run in reading.evaluated_agents]
    return [(name, [*map(sentence, lines)]) for name, lines in found if lines]


def settings(reading: Reading) -> tuple[Table, Table]:
    """Returns the settings in which the configs differ, and those that they share."""
    identities = [config.identity for config in reading.configs]
    differing = plots.differing(identities)
    rows = [[_code(name), *(_written(one.get(name)) for one in identities)] for name in differing]
    head = ["setting", *(letter(reading, index) for index in range(len(identities)))]
    shared = [
        [_code(name), _written(value)]
        for name, value in sorted(identities[0].items())
        if name not in differing and not isinstance(value, Mapping)
    ]
    return Table(head, rows, range(1, len(head))), Table(["setting", "value"], shared, (1,))


def runs(reading: Reading) -> Table:
    """Returns a table of the runs, with their progress."""
    rows = [
        [
            _code(str(run.path)),
            letter(reading, place),
            run.task or "–",
            "–" if run.seed is None else run.seed,
            f"{run.steps:,}",
            _state(run, reading.read_at),
            clock(run.seconds),
            statistics.number(run.rate),
        ]
        for place, run in zip(reading.places, reading.runs, strict=True)
    ]
    config = "config" if len(reading.configs) > 1 else ""
    head = ["run", config, "task", "seed", "steps", "state", "clock", "steps/s"]
    return Table(head, rows, (3, 4, 6, 7))


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _code(text: str) -> Markup:
    return Markup("<code>{}</code>").format(text)


def _written(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value)


def _state(run: ReportedRun, now: float) -> Markup:
    if run.is_complete:
        return Markup('<span class="state good">complete</span>')
    share = "" if run.total_steps is None else f"{min(run.steps / run.total_steps, 1):.0%}, "
    ago = _ago(now - run.written)
    return Markup('<span class="state">{}written {}</span>').format(share, ago)


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _scores(config: comparison.ComparedConfig) -> list[np.ndarray]:
    """Returns for each task the last figures of its seeds."""
    return [curve.values[:, -1] for curve in config.curves.values()]


def _result_tiles(reading: Reading) -> Iterator[Tile]:
    """Yields the mean result over tasks and seeds: of one config, of both, or of the best one."""
    families = [family for family in reading.families for _ in family.configs]
    for index in _highlighted(reading):
        config = reading.configs[index]
        scores = _scores(config)
        interval = statistics.bootstrap(statistics.mean, scores)
        about = [_count(max(len(score) for score in scores), "seed")]
        if len(scores) > 1:
            about.append(f"mean of {len(scores)} tasks")
        if np.isfinite(interval.low):
            about.append(
                f"95 %: {statistics.number(interval.low)} to {statistics.number(interval.high)}"
            )
        name = families[index].y_label
        if len(reading.configs) > _MOST_TILES:
            name = f"{'lowest' if _is_lowest_best(config) else 'highest'} {name}"
        head = Markup("{}{}").format(letter(reading, index) or "", name[:1].upper() + name[1:])
        yield Tile(head, statistics.number(interval.value), ", ".join(about))


def _highlighted(reading: Reading) -> list[int]:
    if len(reading.configs) <= _MOST_TILES:
        return list(range(len(reading.configs)))
    families = [family for family in reading.families if family.is_evaluated] or reading.families
    configs = [config for family in families for config in family.configs]
    is_lowest_best = _is_lowest_best(configs[0])
    are_comparable = len(families) == 1 and len({frozenset(one.curves) for one in configs}) == 1
    if is_lowest_best is None or not are_comparable:
        return []
    means = [float(statistics.mean(_scores(config))) for config in configs]
    return [reading.configs.index(configs[_best(means, is_lowest_best)])]


def _is_lowest_best(config: comparison.ComparedConfig) -> bool | None:
    """Whether lower is better, for the figure that all curves share; None if unknown."""
    return next(iter(config.curves.values())).is_lowest_best


def _best(values: Sequence[float] | np.ndarray, is_lowest_best: bool) -> int:
    """Returns the index of the best value."""
    return int(np.argmin(values) if is_lowest_best else np.argmax(values))


def _progress_tile(reading: Reading) -> Tile:
    runs = reading.runs
    done = sum(run.is_complete for run in runs)
    if done == len(runs):
        ends = dict.fromkeys(f"{end(run.steps for run in runs):,}" for end in (min, max))
        return Tile("Progress", "Complete", f"{' to '.join(ends)} steps")
    shares = [min(run.steps / run.total_steps, 1.0) for run in runs if run.total_steps]
    newest = _ago(reading.read_at - max(run.written for run in runs))
    value = f"{np.mean(shares):.0%}" if shares else f"{max(run.steps for run in runs):,}"
    about = f"{done} of {_count(len(runs), 'run')} done, " if len(runs) > 1 else ""
    return Tile("Progress", value, f"{about}written {newest}")


def _line(index: int, label: str, name: str, curve: Curve, reading: Reading) -> Line:
    bands = (curve.values.min(axis=0), curve.values.max(axis=0)) if curve.seeds > 1 else ()
    label = label if len(reading.configs) > 1 else ""
    return Line(label, label or name, index, curve.steps, curve.values.mean(axis=0), *bands)


def _cells(curve: Curve) -> list[Any]:
    last, best = curve.values[:, -1], "–"
    if curve.is_lowest_best is not None:
        mean = curve.values.mean(axis=0)
        index = _best(mean, curve.is_lowest_best)
        best = f"{statistics.number(mean[index])} @ {axis_number(curve.steps[index])}"
    interval = str(statistics.bootstrap(statistics.mean, [last]))
    several = curve.seeds > 1
    return [
        f"{curve.steps[-1]:,.0f}",
        Markup("<b>{}</b>").format(interval),
        curve.seeds if curve.runs == curve.seeds else curve.counted,
        f"{statistics.number(last.min())} to {statistics.number(last.max())}" if several else "–",
        best,
    ]


def _pairs(family: Family) -> Table | None:
    try:
        pairs = comparison.pairs(family.configs) if len(family.configs) > 1 else []
    except UsageError:  # No task in common.
        return None
    improvement = "probability of improvement [95 %]"
    head = ["pair", "tasks", "at", "difference [95 %]", improvement, "verdict"]
    rows = [
        [
            f"{pair.first} − {pair.second}",
            len(pair.steps),
            pair.at or "–",
            str(pair.difference) if pair.steps else "–",
            str(pair.improvement) if np.isfinite(pair.improvement.low) else "–",
            pair.verdict,
        ]
        for pair in pairs
    ]
    return Table(head, rows, (1, 2, 3, 4)) if rows else None
