"""`rl-replicator sweep NAME --search "option=expression" [options]`."""

import dataclasses
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError, check_option
from rl_replicator.experiments import driver, space, sweep
from rl_replicator.experiments.space import Parameter, Search
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import LENGTHS, folder_name

_COMMAND = "rl-replicator sweep"
# Options of the runs that the sweep itself sets.
_OURS = ("--seed", "--resume", "--no-resume", "--config")
# Prefixes of options that set when and how a run is evaluated: of agents and of our learners.
_EVALUATIONS = ("evaluation.", "evaluate-")


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """Search for good settings of an agent or a learner.

    Every trial chooses a value for each searched option, and trains a run for each seed in its own
    directory. Run the same command again to continue. Other options, such as --env or --steps, are
    passed to 'rl-replicator train'.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """What to train, as for 'rl-replicator train'."""
    search: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """An option and its values, such as 'agent.n-step=choice(1,3,5)'; once for each option. Values:
    choice(A,B,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), quniform(LOW,HIGH,STEP),
    randint(LOW,HIGH) or lograndint(LOW,HIGH), ends included."""
    trials: int = 16
    """Number of trials. The first one has the default values, if the search may choose them."""
    seeds: int = 1
    """Runs of each trial, with the seeds 1, 2, ...; their mean is the figure of the trial."""
    scheduler: Literal["asha", "fifo", "pbt"] = "asha"
    """asha stops trials that are worse than others at the same evaluation; fifo stops none; at
    every interval, pbt continues the worst quarter as copies of good trials with other settings."""
    interval: int | None = None
    """Steps between the comparisons of pbt, as evaluations count them."""
    grace: int = 1
    """First evaluation at which asha may stop a trial."""
    reduction: int = 3
    """One of this many trials is continued at each rung of asha."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How values are chosen: tpe learns from earlier trials."""
    parallel: int | None = None
    """Number of trials at a time. Each gets its share of the processors. Default: one processor per
    run."""
    address: str | None = None
    """HOST:PORT of a Ray cluster whose machines run the trials. Default: this machine."""
    retry_failed: bool = False
    """Continue the trials that have failed, too: once their cause is corrected."""
    run_dir: Path | None = None
    """Directory of the sweep, with a directory for each trial, and results.csv. Default:
    runs/sweep/NAME."""

    def __post_init__(self) -> None:
        lowest = {"trials": 1, "seeds": 1, "grace": 1, "reduction": 2, "parallel": 1}
        is_population = self.scheduler == "pbt"
        if is_population:
            lowest |= {"trials": 2, "interval": 1}
        for name, least in lowest.items():
            value = getattr(self, name)
            is_good = name == "parallel" if value is None else value >= least
            check_option(is_good, name, f"at least {least} with {self.scheduler}", value)
        check_option(
            is_population or self.interval is None, "interval", "none without pbt", self.interval
        )


def run(args: Sequence[str]) -> int:
    """Runs the trials of a sweep that have not ended yet.

    Args:
      args: the words after `sweep`.

    Returns:
      The exit status: 0 if all trials have ended, 1 if all of them failed, 130 or 143 after a
      signal.

    Raises:
      UsageError: after bad input; nothing was started.
    """
    ours, theirs = options.divide(args, options.names_of(SweepOptions))
    if not ours:
        known = ", ".join(trainables.names()) or "none is registered"
        raise UsageError(f"expected something to train ({known}) after '{_COMMAND}', got nothing")
    chosen = options.parse(SweepOptions, _COMMAND, ours)
    options.check_not_given(theirs, _OURS, _COMMAND)
    return driver.run(_plan(chosen, theirs))


def _plan(chosen: SweepOptions, theirs: Sequence[str]) -> sweep.SweepPlan:
    """Returns the plan of a sweep.

    Args:
      chosen: the options of the command itself.
      theirs: the options of its runs.

    Raises:
      UsageError: if a run would refuse the options or a value that the search may choose.
    """
    trainable = trainables.load(chosen.name)
    parameters = space.parse_all(chosen.search)

    settings = trainable.parse(theirs, {})
    given = {word.partition("=")[0].replace("_", "-") for word in theirs}
    for one in parameters:
        _check_searchable(one.option, given)
    has_seed = _setting(settings, "seed") is not None
    if not has_seed and chosen.seeds > 1:
        raise UsageError(
            f"--seeds: expected 1, because {chosen.name} has no option --seed, got {chosen.seeds}"
        )
    seeds = tuple(range(1, chosen.seeds + 1)) if has_seed else (None,)
    run_dir = chosen.run_dir or Path("runs/sweep") / folder_name(chosen.name)
    quiet = ["--no-video"] if hasattr(settings, "video") and "--video" not in theirs else []
    arguments = [*quiet, *sweep.own_words(seeds[0], run_dir), *theirs]
    # A run must accept the example values of every search, one at a time.
    for one in parameters:
        words = [sweep.placed(arguments, [(one, x)]) for x in one.examples()]
        values = [_setting(trainable.parse(tried, {}), one.option) for tried in words]
        if chosen.scheduler == "pbt":
            _check_changeable(trainable, one, values)
    return sweep.SweepPlan(
        name=chosen.name,
        arguments=tuple(theirs),
        quiet=tuple(quiet),
        options=to_plain(settings),
        search=Search(
            tuple(parameters),
            chosen.sampler,
            chosen.scheduler,
            chosen.grace,
            chosen.reduction,
            chosen.interval,
            {one.option: _current(settings, one.option) for one in parameters},
        ),
        trials=chosen.trials,
        seeds=seeds,
        parallel=chosen.parallel or max(1, len(os.sched_getaffinity(0)) // chosen.seeds),
        address=chosen.address,
        module=f"{__package__}.main",
        retry_failed=chosen.retry_failed,
        run_dir=run_dir,
    )


def _check_searchable(option: str, given: Collection[str]) -> None:
    if f"--{option}" in ("--run-dir", *_OURS):
        raise UsageError(
            f"--search: expected no {option}, which '{_COMMAND}' sets for each run; search other "
            "options"
        )
    if option in LENGTHS or option.startswith(_EVALUATIONS):
        # Trials are ranked by their last evaluation, and compared evaluation by evaluation.
        raise UsageError(
            "--search: expected options that leave the length and the evaluations of a run as they "
            f"are, by which trials are compared, got {option}; give --{option}, and sweep each "
            "value of it on its own"
        )
    if f"--{option}" in given:
        raise UsageError(
            f"expected --{option} to be either searched or set, got both; leave one out"
        )


def _check_changeable(
    trainable: trainables.Trainable, parameter: Parameter, values: Sequence[Any]
) -> None:
    """Checks that a run may continue from a checkpoint with another value of a searched option."""
    option = parameter.option
    if not trainable.may_change(option) or not all(isinstance(x, float) for x in values):
        raise UsageError(
            f"--search {option}: expected a real number that may change while a run trains, such "
            "as a learning rate, with --scheduler pbt, got an option that a checkpoint fixes; set "
            "it, or choose --scheduler asha"
        )


def _current(settings: Any, option: str) -> str:
    """Returns the value of an option without the search, as written on the command line."""
    value = to_plain(_setting(settings, option), option)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _setting(settings: Any, option: str) -> Any:
    """Returns the value of an option; None if it has none."""
    roots = [settings, getattr(settings, "config", None)]  # A learner's options are in `config`.
    for value in roots:
        for name in option.replace("-", "_").split("."):
            value = getattr(value, name, None)
        if value is not None:
            return value
    return None
