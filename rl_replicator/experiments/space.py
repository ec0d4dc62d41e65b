"""What is searched: options, and expressions such as `loguniform(1e-4, 1e-3)`.

Expressions are parsed without `eval`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rl_replicator.errors import UsageError
from rl_replicator.experiments.trial import Trial, TrialState, objective

# The share of best trials whose values are compared with those of all trials.
_BEST_SHARE = 0.25
_FEWEST_FOR_IMPORTANCE = 4

_FORMS = {
    "choice": "choice(A, B, ...)",
    "uniform": "uniform(LOW, HIGH)",
    "loguniform": "loguniform(LOW, HIGH)",
    "quniform": "quniform(LOW, HIGH, STEP)",
    "randint": "randint(LOW, HIGH)",
    "lograndint": "lograndint(LOW, HIGH)",
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
      values: the values as they are written on the command line.
    """

    values: tuple[str, ...]

    def match(self, value: str) -> str | None:
        """Returns a value as the search writes it; None if it is not in the search space."""
        return next((one for one in self.values if _key(one) == _key(value)), None)

    def examples(self) -> tuple[str, ...]:
        """Returns values that a run must accept for the search to make sense."""
        return self.values

    def write(self, value: object) -> str:
        """Returns a value as it is written on the command line."""
        return self.match(str(value)) or str(value)

    def read(self, text: str) -> str:
        """Returns a written value as Optuna's distribution has it."""
        return text

    def distribution(self) -> Any:
        """Returns Optuna's distribution of the values."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def mutation(self) -> Any:
        """Returns what Ray Tune's population based training draws from; all values are numbers."""
        return [float(value) for value in self.values]


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included.

    Attributes:
      low: the lowest.
      high: the highest.
      is_log: whether the logarithm is uniform, and not the number itself.
      is_whole: whether only whole numbers are chosen.
      step: distance between the numbers, which start at `low`; None for any number.
    """

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    step: float | None = None

    def match(self, value: str) -> str | None:
        """Returns a value as the search writes it; None if it is not in the search space."""
        number = _key(value)
        if not isinstance(number, float) or not math.isfinite(number):
            return None
        return self.write(number) if abs(float(self.write(number)) - number) < 1e-12 else None

    def examples(self) -> tuple[str, ...]:
        """Returns values that a run must accept for the search to make sense.

        Unless all numbers are whole, they are written as real numbers, such as 16.0: an option that
        takes only whole numbers would accept the ends, but nothing in between.
        """
        if self.is_whole or (self.step is not None and self.low % 1 == self.step % 1 == 0):
            return self.write(self.low), self.write(self.high)
        return repr(float(self.low)), repr(float(self.high))

    def write(self, value: object) -> str:
        """Returns the nearest number of the search as it is written on the command line."""
        number = min(max(float(str(value)), self.low), self.high)
        step = 1.0 if self.is_whole else self.step
        if step is not None:
            number = self.low + round((number - self.low) / step) * step
        number = _decimal(number)
        return str(int(number)) if number.is_integer() else repr(number)

    def read(self, text: str) -> float:
        """Returns a written value as Optuna's distribution has it."""
        return int(text) if self.is_whole else float(text)

    def distribution(self) -> Any:
        """Returns Optuna's distribution of the numbers."""
        from optuna import distributions

        if self.is_whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.is_log)
        return distributions.FloatDistribution(self.low, self.high, log=self.is_log, step=self.step)

    def mutation(self) -> Any:
        """Returns what Ray Tune's population based training draws from."""
        from ray import tune

        return (tune.loguniform if self.is_log else tune.uniform)(self.low, self.high)


def _key(value: str) -> float | str:
    """Returns a key that is equal for all spellings of a value, such as 1e-3 and 0.001."""
    try:
        return float(value)
    except ValueError:
        return value.lower()


def _decimal(number: float) -> float:
    """Removes binary rounding errors from a multiple of a step: returns 0.3 for 0.1 + 0.2."""
    return float(f"{number:.15g}")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An option that a sweep searches.

    Attributes:
      option: its name without the leading hyphens, such as `agent.n-step`.
      space: the values to choose from.
    """

    option: str
    space: Choice | Range

    def words(self, value: str) -> list[str]:
        """Returns the words that set the option on a command line."""
        if value.lower() == "false":
            group, dot, name = self.option.rpartition(".")
            return [f"--{group}{dot}no-{name}"]
        return [f"--{self.option}", *([] if value.lower() == "true" else shlex.split(value))]


def parse(text: str) -> Parameter:
    """Reads `option=expression`.

    Args:
      text: such as `agent.n-step=choice(1, 3, 5)`. A value of several words, such as the layers
        `256 256`, is written with spaces between them.

    Raises:
      UsageError: if it cannot be read; the text is one line.
    """
    option, equals, expression = text.partition("=")
    option = option.strip().replace("_", "-")
    if not equals or not re.fullmatch(r"\w[\w.-]*", option):
        raise UsageError(
            f"--search: expected 'option=expression', such as 'agent.n-step=choice(1,3,5)', got "
            f"{text!r}"
        )
    call = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", expression)
    if not call or call[1] not in _FORMS:
        near = difflib.get_close_matches(call[1], _FORMS, n=1) if call else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"--search {option}: expected {', '.join(_FORMS.values())}, got "
            f"{expression.strip()!r}{hint}"
        )
    name, inside = call.groups()
    arguments = [part.strip() for part in inside.split(",")] if inside.strip() else []
    return Parameter(option, _space(option, name, arguments))


def _space(option: str, name: str, arguments: Sequence[str]) -> Choice | Range:
    if name == "choice":
        return _choice(option, arguments)
    count = 3 if name == "quniform" else 2
    numbers = [_number(option, name, word) for word in arguments]
    if len(numbers) != count:
        raise _wrong(option, name, f"{len(numbers)} values")
    low, high = numbers[:2]
    if not low < high:
        raise _wrong(option, name, f"{arguments[0]} and {arguments[1]}", ", LOW below HIGH")
    is_log, is_whole = name.startswith("log"), name.endswith("randint")
    if is_log and low <= 0:
        raise _wrong(option, name, arguments[0], ", LOW above 0")
    if is_whole and (low % 1 or high % 1):
        raise _wrong(option, name, f"{arguments[0]} and {arguments[1]}", " of whole numbers")
    step = numbers[2] if count == 3 else None
    if step is not None and not 0 < step <= high - low:
        raise _wrong(option, name, arguments[2], ", STEP above 0 and at most HIGH - LOW")
    if step is not None:  # The highest value; Optuna would reduce `high` to it with a warning.
        high = _decimal(low + math.floor((high - low) / step + 1e-9) * step)
    return Range(low, high, is_log, is_whole, step)


def _choice(option: str, arguments: Sequence[str]) -> Choice:
    values = [" ".join(_words(option, word)) for word in arguments]
    if len(values) < 2 or "" in values:
        raise _wrong(option, "choice", f"({', '.join(arguments)})", " of two values or more")
    if len(set(values)) < len(values):
        raise _wrong(option, "choice", f"({', '.join(arguments)})", " of different values")
    return Choice(tuple(values))


def _words(option: str, text: str) -> list[str]:
    """Returns the words of a value, without quotes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise _wrong(option, "choice", f"{text!r} ({error})") from None


def _number(option: str, name: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _wrong(option, name, repr(word), " of numbers")
    return number


def _wrong(option: str, name: str, received: str, condition: str = "") -> UsageError:
    return UsageError(f"--search {option}: expected {_FORMS[name]}{condition}, got {received}")


def parse_all(texts: Sequence[str]) -> list[Parameter]:
    """Reads the parameters of a sweep.

    Args:
      texts: see `parse`.

    Raises:
      UsageError: if there is none, one cannot be read, or two have the same option.
    """
    if not texts:
        raise UsageError(
            "expected --search 'option=expression' at least once, such as --search "
            "'agent.n-step=choice(1,3,5)', got none"
        )
    parameters = [parse(text) for text in texts]
    names = [parameter.option for parameter in parameters]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"expected --search once for {name}, got it {names.count(name)} times")
    return parameters


@dataclasses.dataclass(frozen=True)
class Search:
    """How to search.

    Attributes:
      parameters: what is searched.
      sampler: "tpe" or "random".
      scheduler: "asha", which stops trials early; "fifo", which stops none; or "pbt", which lets
        trials copy each other.
      grace: number of the first evaluation after which a trial may be stopped.
      reduction: one of this many trials is continued at each rung.
      interval: steps from one comparison of pbt to the next; None for the others.
      defaults: value of each option without the search, as written.
    """

    parameters: tuple[Parameter, ...]
    sampler: str
    scheduler: str
    grace: int
    reduction: int
    interval: int | None
    defaults: Mapping[str, str]

    @property
    def first(self) -> dict[str, Any] | None:
        """The defaults, as the distributions have them; None unless the search may choose them."""
        found = {one.option: one.space.match(self.defaults[one.option]) for one in self.parameters}
        written = {option: value for option, value in found.items() if value is not None}
        return self.read(written) if len(written) == len(found) else None

    def distributions(self) -> dict[str, Any]:
        """Returns Optuna's distribution of each option."""
        return {one.option: one.space.distribution() for one in self.parameters}

    def read(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Returns written values as the distributions have them."""
        return {one.option: one.space.read(values[one.option]) for one in self.parameters}

    def drawn(self, count: int) -> list[dict[str, str]]:
        """Returns values for the first trials of a population, as written: the defaults, if the
        search may choose them, and random ones.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        if self.first is not None:
            study.enqueue_trial(self.first)
        return [self.written(study.ask(self.distributions()).params) for _ in range(count)]

    def written(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Returns values as they are written on the command line."""
        return {one.option: one.space.write(values[one.option]) for one in self.parameters}

    def importance(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Returns the share of the differences that each option explains, the highest first.

        PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255): how much the values of the best quarter
        of the trials differ from those of all. A trial that was stopped counts with its last
        evaluation. Empty for fewer than four trials.

        Args:
          trials: all trials.
        """
        import optuna

        study = optuna.create_study(direction="maximize")
        for one in trials:
            if one.state in (TrialState.DONE, TrialState.STOPPED) and one.evaluations:
                study.add_trial(
                    optuna.trial.create_trial(
                        params=self.read(one.values),
                        distributions=self.distributions(),
                        value=objective(one.evaluations, one.is_highest_best),
                    )
                )
        if len(study.trials) < _FEWEST_FOR_IMPORTANCE:
            return {}
        with warnings.catch_warnings():  # Optuna warns about its experimental features.
            warnings.simplefilter("ignore")
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
            return optuna.importance.get_param_importances(study, evaluator=evaluator)
