"""The first sections of a report: the runs at a glance, their curves, and their results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.reports import figures
from agents.reports.blocks import config_name, section, table
from agents.reports.charts import Line, chart, colour_class
from agents.reports.markup import Child, Html, element, joined
from agents.reports.reading import Family, Reading
from agents.runs import bottleneck
from agents.suites import results
from rl_replicator.errors import UsageError
from rl_replicator.runs import comparison, events, plots, statistics
from rl_replicator.runs.comparison import ComparedConfig, Pair
from rl_replicator.runs.plots import Curve
from rl_replicator.runs.progress_line import clock

# Results of more configs are not shown as tiles.
_MOST_TILES = 2
# More pairs of configs are collapsed.
_MOST_PAIRS = 6


def config_names(reading: Reading) -> list[str]:
    """Returns a short name for each config: the settings in which it differs from the others."""
    settings = [config.identity for config in reading.configs]
    labels = plots.short_labels(settings)
    # A single config differs from none.
    return [
        label or str(one.get("trainable", "")) for label, one in zip(labels, settings, strict=True)
    ]


def title(reading: Reading) -> str:
    """Returns the title of the report."""
    trained = list(dict.fromkeys(run.trainable for run in reading.runs))
    about = " and ".join(trained) if len(trained) <= 2 else f"{len(trained)} algorithms"
    tasks = reading.tasks
    if not tasks:
        return about or "Waiting for metrics"
    return f"{about} on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}"


def subtitle(reading: Reading) -> str:
    """Returns how many runs, configs, tasks and seeds the report shows."""
    seeds = {run.seed for run in reading.runs if run.seed is not None}
    parts = [
        _count(len(reading.runs), "run"),
        _count(len(reading.configs), "config"),
        _count(len(reading.tasks), "task") if reading.tasks else "",
        _count(len(seeds), "seed") if seeds else "",
    ]
    return " · ".join(part for part in parts if part)


def glance(reading: Reading) -> Html:
    """Returns the most important figures as tiles."""
    tiles = [*_result_tiles(reading), _progress_tile(reading), _clock_tile(reading)]
    limit = _bottleneck(reading)
    if limit:
        tiles.append(_tile("Bottleneck", *limit))
    survived = sum(len(events.faults(events.read(run.path))) for run in reading.runs)
    if survived:
        tiles.append(_tile("Faults survived", str(survived), "restarts and continuations"))
    return element("div", tiles, class_="tiles", id="glance")


def curves(reading: Reading) -> Html:
    """Returns a chart for each task, with a line for each config."""
    names = config_names(reading)
    first = 0
    several = len(reading.configs) > 1
    body: list[Html] = []
    for family in reading.families:
        charts = [
            chart(
                [
                    _line(first + i, config.label if several else "", names[first + i], curve)
                    for i, config in enumerate(family.configs)
                    if (curve := config.curves.get(task)) is not None
                ],
                task or _trained(family, names[first]),
                family.x_label,
                family.y_label,
            )
            for task in _tasks(family)
        ]
        if several:
            body.append(_legend(family, names, first))
        body.append(element("div", charts, class_="charts" if len(charts) > 1 else "charts one"))
        first += len(family.configs)
    is_banded = any(c.seeds > 1 for config in reading.configs for c in config.curves.values())
    about = (
        "Line: mean over seeds. Band: lowest to highest seed. A curve ends where its slowest run "
        "is now."
    )
    return section("curves", "Learning curves", body, about=about if is_banded else None)


def table_of_results(reading: Reading) -> Html:
    """Returns the table of results, and the comparison of the configs."""
    body: list[Child] = []
    first = 0
    several = len(reading.configs) > 1
    for family in reading.families:
        rows = _result_rows(family, first, several)
        head = [
            "task",
            "config" if several else None,
            "at",
            f"mean {family.y_label} [95 %]",
            "seeds",
            "range",
            "best",
        ]
        body.append(table(head, rows, (2, 3, 4, 5, 6)))
        body.append(_pairs(family))
        first += len(family.configs)
    about = (
        "Figures at the last step that all seeds of a config have reached; those of a pair at the "
        "last one of both configs, which may be an earlier one. Intervals: stratified "
        "bootstrap over seeds (Agarwal et al. 2021); best: best point of the mean curve."
    )
    return section("results", "Results", body, about=about)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _tile(name: str, value: Child, about: Child) -> Html:
    return element("div", element("h3", name), element("p", value), element("small", about))


def _result_tiles(reading: Reading) -> list[Html]:
    """The mean result over tasks and seeds: of one config, of both, or of the best one."""
    tiles = []
    families = [family for family in reading.families for _ in family.configs]
    for index in _highlighted(reading):
        config = reading.configs[index]
        scores = [curve.values[:, -1] for curve in config.curves.values()]
        interval = statistics.bootstrap(statistics.mean, scores)
        over = [_count(max(len(score) for score in scores), "seed")]
        if len(scores) > 1:
            over.append(f"mean of {len(scores)} tasks")
        if np.isfinite(interval.low):
            over.append(f"95 %: {figures.number(interval.low)} to {figures.number(interval.high)}")
        name = families[index].y_label
        if len(reading.configs) > _MOST_TILES:
            name = f"{'lowest' if _is_lowest_best(config) else 'highest'} {name}"
        head = joined(
            element("span", config.label, class_=f"letter {colour_class(index)}")
            if len(reading.configs) > 1
            else None,
            name[:1].upper() + name[1:],
        )
        tiles.append(
            element(
                "div",
                element("h3", head),
                element("p", figures.number(interval.value)),
                element("small", ", ".join(over)),
            )
        )
    return tiles


def _highlighted(reading: Reading) -> list[int]:
    if len(reading.configs) <= _MOST_TILES:
        return list(range(len(reading.configs)))
    evaluated = [family for family in reading.families if family.is_evaluated]
    families = evaluated or reading.families
    configs = [config for family in families for config in family.configs]
    if len(families) != 1 or len({frozenset(one.curves) for one in configs}) > 1:
        return []  # Their figures are not comparable.
    is_lowest_best = _is_lowest_best(configs[0])
    if is_lowest_best is None:
        return []
    means = [
        float(statistics.mean([curve.values[:, -1] for curve in config.curves.values()]))
        for config in configs
    ]
    best = configs[_best(means, is_lowest_best)]
    return [place for place, config in enumerate(reading.configs) if config is best]


def _is_lowest_best(config: ComparedConfig) -> bool | None:
    """Whether lower is better, for the figure that all curves share; None if unknown."""
    return next(iter(config.curves.values())).is_lowest_best


def _best(values: Sequence[float] | np.ndarray, is_lowest_best: bool) -> int:
    """Returns the index of the best value."""
    return int(np.argmin(values) if is_lowest_best else np.argmax(values))


def _progress_tile(reading: Reading) -> Html:
    done = sum(run.is_complete for run in reading.runs)
    known = [run for run in reading.runs if run.total_steps]
    if done == len(reading.runs):
        steps = sorted({run.steps for run in reading.runs})
        text = " to ".join(figures.steps(s) for s in dict.fromkeys((steps[0], steps[-1])))
        return _tile("Progress", "Complete", f"{text} steps")
    share = np.mean([min(run.steps / (run.total_steps or 1), 1.0) for run in known] or [0.0])
    newest = figures.ago(reading.read_at - max(run.written for run in reading.runs))
    value = f"{share:.0%}" if known else figures.steps(max(run.steps for run in reading.runs))
    about = f"{done} of {_count(len(reading.runs), 'run')} done, " if len(reading.runs) > 1 else ""
    return _tile("Progress", value, f"{about}written {newest}")


def _clock_tile(reading: Reading) -> Html:
    longest = max(reading.runs, key=lambda run: run.seconds)
    rate = longest.steps / max(longest.seconds, 1e-9)
    about = f"{figures.number(rate)} steps/s" + (
        ", the longest run" if len(reading.runs) > 1 else ""
    )
    return _tile("Clock", clock(longest.seconds), about)


def _bottleneck(reading: Reading) -> tuple[str, str] | None:
    """Returns the most frequent bottleneck of the runs, and in how many it is."""
    found = []
    for run in reading.runs:
        lines = bottleneck.explain(run.path, run.options)
        if lines:
            found.append(lines[-1].removeprefix("bottleneck: ").partition(";")[0].partition(",")[0])
    if not found:
        return None
    most = max(sorted(set(found)), key=found.count)
    return most, f"{found.count(most)} of {_count(len(found), 'run')}"


def _tasks(family: Family) -> list[str]:
    return list(dict.fromkeys(task for config in family.configs for task in config.curves))


def _trained(family: Family, name: str) -> str:
    """Returns what the configs of a learner have in common; `name` if there is only one."""
    if len(family.configs) == 1:
        return name
    found = {str(config.identity.get("trainable", "")) for config in family.configs}
    return found.pop() if len(found) == 1 else family.y_label


def _line(index: int, label: str, name: str, curve: Curve) -> Line:
    several = curve.seeds > 1
    return Line(
        label,
        label or name,
        index,
        curve.steps,
        curve.values.mean(axis=0),
        curve.values.min(axis=0) if several else None,
        curve.values.max(axis=0) if several else None,
    )


def _legend(family: Family, names: Sequence[str], first: int) -> Html:
    items = []
    for i, config in enumerate(family.configs):
        seeds = sorted({curve.seeds for curve in config.curves.values()})
        text = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        about = element("small", f"{text} {'seed' if seeds == [1] else 'seeds'}")
        items.append(
            element("li", config_name(first + i, config.label, names[first + i]), " ", about)
        )
    return element("ul", items, class_="legend")


def _result_rows(family: Family, first: int, several: bool) -> list[list[Child]]:
    letters = [
        config_name(first + i, config.label, "") if several else None
        for i, config in enumerate(family.configs)
    ]
    tasks = _tasks(family)
    rows: list[list[Child]] = [
        [task or "–", letter, *_cells(config.curves[task])]
        for task in tasks
        for config, letter in zip(family.configs, letters, strict=True)
        if task in config.curves
    ]
    for name, measure in results.MEASURES.items():
        for config, letter in zip(family.configs, letters, strict=True):
            if len(config.curves) > 1:
                scores = [curve.values[:, -1] for curve in config.curves.values()]
                interval = figures.interval(statistics.bootstrap(measure, scores))
                seeds = str(sum(map(len, scores)))
                rows.append([f"{name} of {len(scores)} tasks", letter, "", interval, seeds, "", ""])
    return rows


def _cells(curve: Curve) -> list[Child]:
    last = curve.values[:, -1]
    spread = f"{figures.number(last.min())} to {figures.number(last.max())}"
    return [
        figures.steps(curve.steps[-1]),
        element("b", figures.interval(statistics.bootstrap(statistics.mean, [last]))),
        str(curve.seeds) if curve.runs == curve.seeds else curve.counted,
        spread if curve.seeds > 1 else "–",
        _best_point(curve),
    ]


def _best_point(curve: Curve) -> str:
    if curve.is_lowest_best is None:
        return "–"
    mean = curve.values.mean(axis=0)
    best = _best(mean, curve.is_lowest_best)
    return f"{figures.number(mean[best])} @ {figures.axis_number(curve.steps[best])}"


def _pairs(family: Family) -> Html | None:
    try:
        pairs = comparison.pairs(family.configs) if len(family.configs) > 1 else []
    except UsageError:  # No task in common.
        return None
    if not pairs:
        return None
    improvement = "probability of improvement [95 %]"
    head = ["pair", "tasks", "at", "difference [95 %]", improvement, "verdict"]
    found = table(head, [_pair(pair) for pair in pairs], (1, 2, 3, 4))
    if len(pairs) <= _MOST_PAIRS:
        return found
    return element("details", element("summary", f"{len(pairs)} pairs of configs"), found)


def _pair(pair: Pair) -> list[Child]:
    return [
        f"{pair.first} − {pair.second}",
        str(len(pair.steps)),
        pair.at or "–",
        figures.interval(pair.difference) if pair.steps else "–",
        figures.interval(pair.improvement) if np.isfinite(pair.improvement.low) else "–",
        pair.verdict,
    ]
