"""A search for good settings: its trials, their table, and the best settings."""

from __future__ import annotations

import csv
import dataclasses
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.experiments import copies, trial
from rl_replicator.experiments.experiment import Experiment, count
from rl_replicator.experiments.space import Parameter, Search
from rl_replicator.experiments.trial import Trial, TrialRun, TrialState, objective
from rl_replicator.runs import atomic_file
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import FREE_OPTIONS, SWEEP
from rl_replicator.runs.statistics import aligned

# The table shows trials in the order of their states, the best ones of each state first.
_ORDER = (
    *(TrialState.DONE, TrialState.RUNNING, TrialState.WAITING),
    *(TrialState.STOPPED, TrialState.FAILED),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepPlan(Experiment):
    """A search for good settings, with everything that its command line specifies.

    Attributes:
      name: what is trained.
      arguments: the arguments of `rl-replicator train`, for every run.
      quiet: further arguments of every run, which are not printed with the best settings.
      options: the options that `train` parses from `arguments`, as plain data.
      search: how to search.
      seeds: the seeds of the runs of a trial; a single None if there is no option for the seed.
      retry_failed: whether trials that have failed are tried again.
    """

    kind = SWEEP
    free = tuple(f"options.{name}" for name in FREE_OPTIONS)

    name: str
    arguments: tuple[str, ...]
    quiet: tuple[str, ...]
    options: Mapping[str, Any]
    search: Search
    seeds: tuple[int | None, ...]
    retry_failed: bool

    def words(self, values: Mapping[str, str]) -> list[str]:
        """Returns the arguments together with values of the searched options."""
        settings = [(one, values[one.option]) for one in self.search.parameters]
        return placed(self.arguments, settings)

    def written(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the values of a trial as they are written on the command line."""
        return self.search.written(values)

    def runs(self, name: str, values: Mapping[str, str]) -> list[TrialRun]:
        """Returns the runs of a trial, one for each seed."""
        found = []
        for seed in self.seeds:
            path = self.run_dir / name / f"seed-{seed or 1}"
            own = [*self.quiet, *own_words(seed, path)]
            words = [self.name, *own, *self.words(values)]
            found.append(TrialRun(words, path, self.run_dir / "logs" / f"{name}-{path.name}.log"))
        return found

    @property
    def identity(self) -> dict[str, Any]:
        """See `Experiment`: what is trained, and how it is searched."""
        search = {key: value for key, value in to_plain(self.search).items() if key != "defaults"}
        plain = {"name": self.name, "seeds": len(self.seeds), "search": search}
        # A population cannot grow: its trials train side by side.
        trials = {"trials": self.trials} if self.search.scheduler == "pbt" else {}
        return {**plain, **trials, "options": self.options}

    @property
    def settings(self) -> dict[str, Any]:
        """See `Experiment`."""
        return {"arguments": list(self.arguments)}

    def begun(self) -> list[Trial]:
        """Returns the trials that have begun, and all of a population."""
        trials = trial.read(self.run_dir / "trials.json")
        for one in trials:
            if self.retry_failed and one.state is TrialState.FAILED:
                one.state, one.reason = TrialState.WAITING, ""
            stages = copies.read(self.run_dir / one.name)
            if stages:  # Perhaps made after the trials were written.
                one.values = stages[-1]["values"]
        if self.search.scheduler == "pbt" and not trials:
            drawn = enumerate(self.search.drawn(self.trials))
            trials = [Trial(f"trial-{number:03}", values) for number, values in drawn]
            trial.write(self.run_dir / "trials.json", trials)
        return trials

    def text(self, trials: Sequence[Trial]) -> str:
        """Returns the table, with a row for each trial."""
        return text(trials, max(self.trials, len(trials)))

    def noted(self, trials: Sequence[Trial], one: Trial) -> str:
        """See `Experiment`."""
        _write(self, trials)
        return _line(one) if one.state is not TrialState.WAITING else ""

    def conclude(self, trials: Sequence[Trial], is_stopped: bool) -> int:
        """Returns 1 if all trials have failed, which a line on stderr reports, else 0."""
        _write(self, trials)
        _conclude(self, trials)
        if is_stopped or count(trials, TrialState.DONE, TrialState.STOPPED):
            return 0
        failed = [one for one in trials if one.state is TrialState.FAILED]
        print(
            f"rl-replicator: error: expected trials that run, but all {len(failed)} failed "
            f"({failed[0].name} {failed[0].reason}); see {self.run_dir / 'logs'}; correct the code "
            "and add --retry-failed, or choose other options and another --run-dir",
            file=sys.stderr,
        )
        return 1


def own_words(seed: int | None, run_dir: Path) -> list[str]:
    """Returns the words with which a sweep sets the seed, if there is one, and the directory."""
    return [*(() if seed is None else ("--seed", str(seed))), "--run-dir", str(run_dir)]


def placed(arguments: Sequence[str], settings: Iterable[tuple[Parameter, str]]) -> list[str]:
    """Returns arguments of `train` together with searched options.

    These precede the arguments. Only the options of a dataclass that a word like 'kind:b' chooses
    must follow that word.

    Args:
      arguments: the arguments.
      settings: searched options with a value for each.
    """
    groups = tuple(f"{word.partition(':')[0]}." for word in arguments if ":" in word)
    before: list[str] = []
    after: list[str] = []
    for one, value in settings:
        (after if one.option.startswith(groups) else before).extend(one.words(value))
    return [*before, *arguments, *after]


def text(trials: Sequence[Trial], total: int) -> str:
    """Returns the table: one row for each trial.

    Args:
      trials: the trials that have begun.
      total: number of trials.
    """
    numbers = {state: count(trials, state) for state in TrialState}
    ended = len(trials) - numbers[TrialState.RUNNING] - numbers[TrialState.WAITING]
    parts = [f"{ended} of {total} trials ended"]
    parts += [f"{number} {state.value}" for state, number in numbers.items() if number]
    options = list(trials[0].values) if trials else []
    figure = next((one.figure for one in trials if one.figure), "figure")
    rows = [["trial", *options, "state", "evaluations", "steps", figure, "seeds"]]
    rows += [_row(one) for one in ranked(trials)]
    if any(one.origin for one in trials):
        origins = [one.origin or "the start" for one in ranked(trials)]
        rows = [[*row, end] for row, end in zip(rows, ["from", *origins], strict=True)]
    return "\n".join([", ".join(parts), *aligned(rows)])


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials in the order of their states.

    Those of a state are sorted by the newest evaluation, the best one first; unless they are done,
    trials with more evaluations come before others.
    """

    def key(one: Trial) -> tuple[int, int, float]:
        made = 0 if one.state is TrialState.DONE else len(one.evaluations)
        return _ORDER.index(one.state), -made, -objective(one.evaluations, one.is_highest_best)

    return sorted(trials, key=key)


def _number(one: Trial) -> str:
    return str(int(one.name.rpartition("-")[2]))


def _row(one: Trial) -> list[str]:
    values = map(_rounded, one.values.values())
    cells = [_number(one), *values, one.state.value, str(len(one.evaluations))]
    if not one.evaluations:
        return [*cells, "", "", ""]
    last = one.evaluations[-1]
    spread = f"{last.low:.4g} to {last.high:.4g}" if last.low < last.high else ""
    return [*cells, f"{last.steps:,}", f"{last.mean:.4g}", spread]


def _rounded(value: str) -> str:
    """Returns a value of an option; a decimal fraction is rounded to six significant digits."""
    try:
        return f"{float(value):.6g}" if "." in value else value
    except ValueError:
        return value


def _line(one: Trial) -> str:
    """Returns what is new about a trial."""
    values = ", ".join(f"{option} {_rounded(value)}" for option, value in one.values.items())
    about = f": {one.reason}" if one.reason else ""
    if one.state is TrialState.RUNNING and one.origin:
        about = f", from {one.origin}"
    elif one.state in (TrialState.DONE, TrialState.STOPPED) and one.evaluations:
        last = one.evaluations[-1]
        about = f" after {last.steps:,} steps: {one.figure} {last.mean:.4g}"
    verb = "has" if one.state is TrialState.FAILED else "is"
    return f"trial {_number(one)} ({values}) {verb} {one.state.value}{about}"


def _write(plan: SweepPlan, trials: Sequence[Trial]) -> None:
    """Writes the trials for the next process, and as CSV for the user, atomically."""
    trial.write(plan.run_dir / "trials.json", trials)
    columns = ["trial", "state", "evaluations", "steps", "score", "lowest_seed", "highest_seed"]
    with atomic_file.replacing(plan.run_dir / "results.csv") as new, new.open("w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*columns, *(trials[0].values if trials else ())])
        for one in trials:
            cells: list[object] = ["", "", "", ""]
            if one.evaluations:
                last = one.evaluations[-1]
                cells = [last.steps, *(f"{x:.6g}" for x in (last.mean, last.low, last.high))]
            cells = [_number(one), one.state.value, len(one.evaluations), *cells]
            writer.writerow([*cells, *one.values.values()])


def _conclude(plan: SweepPlan, trials: Sequence[Trial]) -> None:
    """Prints the importance of the options, the best trial, and its settings as a command."""
    shares = plan.search.importance(trials)
    if shares:
        words = [f"{option} {share:.0%}" for option, share in shares.items()]
        print(f"importance: {', '.join(words)}")
    print(f"results {plan.run_dir / 'results.csv'}", flush=True)
    done = [one for one in ranked(trials) if one.state is TrialState.DONE]
    if not done:
        return
    best = done[0]
    seeds = f" over {len(plan.seeds)} seeds" if len(plan.seeds) > 1 else ""
    print(f"best: trial {_number(best)} with {best.figure} {best.evaluations[-1].mean:.4g}{seeds}:")
    stages = copies.read(plan.run_dir / best.name)
    for stage in stages:
        values = ", ".join(f"{option} {value}" for option, value in stage["values"].items())
        print(f"  from {Path(stage['source']).parent.name} at {stage['step']:,}: {values}")
    if stages:
        print("no single command has this schedule; its last settings, from the start:")
    print(shlex.join(["rl-replicator", "train", plan.name, *plan.words(best.values)]), flush=True)
