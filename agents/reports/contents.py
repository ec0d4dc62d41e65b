"""What the page says: the figures and texts of its sections, which `page.html` arranges."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from agents.nodes import starts
from agents.reports import charts
from agents.reports.charts import Line, axis_number, chart
from agents.reports.reading import Reading, ReportedRun
from agents.runs import advice
from rl_replicator.runs import comparison, evaluations, events, statistics
from rl_replicator.runs.evaluations import ComparedConfig, Curve, EvaluatedRun
from rl_replicator.runs.progress_line import clock
from rl_replicator.runs.statistics import number

# Results of more configs are not shown as tiles.
_MOST_TILES = 2
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
    numeric: Sequence[int] = ()


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
    if not reading.runs:
        return "Waiting for metrics"
    trained = list(dict.fromkeys(run.trainable for run in reading.runs))
    about = " and ".join(trained) if len(trained) <= 2 else f"{len(trained)} algorithms"
    tasks = list(dict.fromkeys(run.task for run in reading.runs if run.task))
    where = [f"on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"] if tasks else []
    return " ".join([about, *where])


def counts(reading: Reading) -> str:
    """Returns how many runs, configs, tasks and seeds the report shows."""
    numbers = {
        "run": len(reading.runs),
        "config": len(reading.configs),
        "task": len({run.task for run in reading.runs if run.task}),
        "seed": len({run.seed for run in reading.runs if run.seed is not None}),
    }
    return " · ".join(_count(count, name) for name, count in numbers.items() if count)


def letter(reading: Reading, index: int | None) -> Markup | None:
    """Returns the letter of a config in its colour; None for none, or if there is only one."""
    if len(reading.configs) < 2 or index is None:
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
    yield Tile("Clock", clock(longest.seconds), f"{number(longest.rate)} steps/s{several}")
    limits = [
        explained[-1].removeprefix("bottleneck: ").partition(";")[0].partition(",")[0]
        for run in reading.runs
        if (explained := advice.explain(run.path, run.options))
    ]
    if limits:
        most = max(sorted(set(limits)), key=limits.count)
        yield Tile("Bottleneck", most, f"{limits.count(most)} of {_count(len(limits), 'run')}")
    survived, _ = faults(reading)
    if survived:
        yield Tile("Faults survived", str(survived), "restarts and continuations")


def legend(reading: Reading) -> list[Markup]:
    """Returns the letter, the name and the number of seeds of each config; [] for a single one."""
    entries = []
    for index, config in enumerate(reading.configs):
        seeds = sorted({curve.seeds for curve in config.curves.values()})
        text = " to ".join(dict.fromkeys((str(seeds[0]), str(seeds[-1]))))
        words = letter(reading, index), config.name, text, "seed" if seeds == [1] else "seeds"
        entries.append(Markup("{}{} <small>{} {}</small>").format(*words))
    return entries if len(entries) > 1 else []


def curves(reading: Reading) -> Iterator[Plot]:
    """Yields a chart for each task with a line for each config."""
    x_label, y_label = reading.labels
    trained = {str(config.identity.get("trainable", "")) for config in reading.configs}
    for task in reading.tasks:
        lines = [
            _line(index, config, config.curves[task], len(reading.configs) > 1)
            for index, config in enumerate(reading.configs)
            if task in config.curves
        ]
        name = task or (trained.pop() if len(trained) == 1 else y_label)
        size = _WHOLE if len(reading.tasks) == 1 else _HALF
        svg = chart(lines, size, f"{name}, {y_label} over {x_label}")
        yield Plot(name, y_label, x_label, svg)


def results(reading: Reading) -> Iterator[Table]:
    """Yields the table of the results, and that of the pairs of configs."""
    rows = [
        [task or "–", letter(reading, index), *_cells(config.curves[task])]
        for task in reading.tasks
        for index, config in enumerate(reading.configs)
        if task in config.curves
    ]
    for name, measure in statistics.MEASURES.items():
        for index, config in enumerate(reading.configs):
            scores = _scores(config)
            if len(scores) > 1:
                interval = str(statistics.bootstrap(measure, scores))
                about = f"{name} of {len(scores)} tasks"
                seeds = sum(map(len, scores))
                rows.append([about, letter(reading, index), "", interval, seeds, "", ""])
    column = "config" if len(reading.configs) > 1 else ""
    head = ["task", column, "at", f"mean {reading.labels[1]} [95 %]", "seeds", "range", "best"]
    yield Table(head, rows, (2, 3, 4, 5, 6))
    pairs = comparison.pairs(reading.configs)
    if pairs:
        cells = [[f"{pair.first} − {pair.second}", *pair.cells] for pair in pairs]
        yield Table(["pair", *comparison.COLUMNS], cells, (1, 2, 3, 4))
    rows = [[run.name, *cells] for run in reading.evaluated_agents for cells in _starts(run)]
    if rows:
        head = ["run", "episodes that began with", "number", "mean return", "range"]
        yield Table(head, rows, (2, 3, 4))


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
    details = [
        (place, run, run.details())
        for place, run in zip(reading.places, reading.runs, strict=True)
        if place is not None
    ]
    names = dict.fromkeys(name for _, _, one in details for name in one if name not in _COUNTERS)
    for name in list(names)[:_MOST_DETAILS]:
        found: dict[int, list[EvaluatedRun]] = {}
        for place, run, one in details:
            if name in one:
                own = EvaluatedRun(run.settings, run.seed, one[name])
                found.setdefault(place, []).append(own)
        lines = [
            Line("", reading.configs[place].name, place, one.steps, one.values.mean(axis=0))
            for place, own in sorted(found.items())
            for one in evaluations.merged(own)
        ]
        about = name.replace("_", " ")
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
    return count, Table(["time (UTC)", "run", "node", "event", "detail"], rows)


def advised(reading: Reading) -> list[tuple[str, list[Markup]]]:
    """Returns the names of the runs whose return stagnated or stayed low, and the advice."""
    found = [(run.name, advice.advise(run.path, run.options)) for run in reading.evaluated_agents]
    return [(name, [*map(sentence, lines)]) for name, lines in found if lines]


def settings(reading: Reading) -> tuple[Table, Table]:
    """Returns the settings in which the configs differ, and those that they share."""
    identities = [config.identity for config in reading.configs]
    differing = reading.configs[0].settings
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
            number(run.rate),
        ]
        for place, run in zip(reading.places, reading.runs, strict=True)
    ]
    config = "config" if len(reading.configs) > 1 else ""
    head = ["run", config, "task", "seed", "steps", "state", "clock", "steps/s"]
    return Table(head, rows, (3, 4, 6, 7))


def _starts(run: ReportedRun) -> Iterator[list[Any]]:
    """Yields the cells of the two kinds of starts from which a run's returns differ, if any."""
    found = starts.of_run(run.path)
    if found is not None:
        for words, returns in (("up to", found.below), ("above", found.above)):
            limits = f"{number(returns.min())} to {number(returns.max())}"
            about = f"{found.name} {words} {number(found.threshold)}"
            yield [about, len(returns), number(returns.mean()), limits]


def _count(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


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


def _scores(config: ComparedConfig) -> list[np.ndarray]:
    """Returns for each task the last figures of its seeds."""
    return [curve.values[:, -1] for curve in config.curves.values()]


def _result_tiles(reading: Reading) -> Iterator[Tile]:
    """Yields the mean result over tasks and seeds: of one config, of both, or of the best one."""
    shown, name = range(len(reading.configs)), reading.labels[1]
    if len(reading.configs) > _MOST_TILES:
        have_same_tasks = len({frozenset(one.curves) for one in reading.configs}) == 1
        if reading.is_lowest_best is None or not have_same_tasks:
            return
        means = [float(statistics.mean(_scores(config))) for config in reading.configs]
        best = _best(means, reading.is_lowest_best)
        shown = range(best, best + 1)
        name = f"{'lowest' if reading.is_lowest_best else 'highest'} {name}"
    for index in shown:
        scores = _scores(reading.configs[index])
        interval = statistics.bootstrap(statistics.mean, scores)
        about = [_count(max(len(score) for score in scores), "seed")]
        if len(scores) > 1:
            about.append(f"mean of {len(scores)} tasks")
        if np.isfinite(interval.low):
            about.append(f"95 %: {number(interval.low)} to {number(interval.high)}")
        head = Markup("{}{}").format(letter(reading, index) or "", name[:1].upper() + name[1:])
        yield Tile(head, number(interval.value), ", ".join(about))


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


def _line(index: int, config: ComparedConfig, curve: Curve, is_one_of_several: bool) -> Line:
    bands = (curve.values.min(axis=0), curve.values.max(axis=0)) if curve.seeds > 1 else ()
    label = config.label if is_one_of_several else ""
    mean = curve.values.mean(axis=0)
    return Line(label, label or config.name, index, curve.steps, mean, *bands)


def _cells(curve: Curve) -> list[Any]:
    last, best = curve.values[:, -1], "–"
    if curve.is_lowest_best is not None:
        mean = curve.values.mean(axis=0)
        index = _best(mean, curve.is_lowest_best)
        best = f"{number(mean[index])} @ {axis_number(curve.steps[index])}"
    return [
        f"{curve.steps[-1]:,.0f}",
        Markup("<b>{}</b>").format(str(statistics.bootstrap(statistics.mean, [last]))),
        curve.seeds if curve.runs == curve.seeds else curve.counted,
        f"{number(last.min())} to {number(last.max())}" if curve.seeds > 1 else "–",
        best,
    ]
