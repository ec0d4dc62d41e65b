"""What is searched: options, and expressions such as `loguniform(1e-4, 1e-3)`.

Expressions are parsed without `eval`, into distributions of Optuna.
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
class Parameter:
    """An option that a sweep searches.

    Attributes:
      option: its name without the leading hyphens, such as `agent.n-step`.
      form: what it is chosen from, a key of `_FORMS`.
      values: the arguments of the form: the words of the choices, or numbers.
    """

    option: str
    form: str
    values: tuple[Any, ...]

    @property
    def distribution(self) -> Any:
        """Optuna's distribution."""
        from optuna import distributions

        if self.form == "choice":
            return distributions.CategoricalDistribution(self.values)
        is_log = self.form.startswith("log")
        if self._is_whole:
            return distributions.IntDistribution(*self.values, log=is_log)
        return distributions.FloatDistribution(*self.values[:2], log=is_log, step=self._step)

    def examples(self) -> list[str]:
        """Returns values that a run must accept for the search to make sense.

        Unless all numbers are whole, they are written as real numbers, such as 16.0: an option that
        takes only whole numbers would accept the ends, but nothing in between.
        """
        if self.form == "choice":
            return list(self.values)
        if self._step is not None and self.values[0] % 1 == self._step % 1 == 0:
            return [self.write(end) for end in self.values[:2]]
        return [repr(end) for end in self.values[:2]]

    def write(self, value: object) -> str:
        """Returns the nearest value of the search as it is written on the command line."""
        if self.form == "choice":
            same = (one for one in self.values if _key(one) == _key(str(value)))
            return next(same, str(value))
        low, high = self.values[:2]
        number = min(max(float(str(value)), low), high)
        step = 1 if self._is_whole else self._step
        if step is not None:
            number = low + round((number - low) / step) * step
        number = _decimal(number)
        return str(int(number)) if number.is_integer() else repr(number)

    def holds(self, value: str) -> bool:
        """Returns whether the search may choose a value."""
        if self.form == "choice":
            return self.write(value) in self.values
        number = _key(value)
        return isinstance(number, float) and abs(float(self.write(number)) - number) < 1e-12

    def read(self, text: str) -> Any:
        """Returns a written value as the distribution has it."""
        return text if self.form == "choice" else int(text) if self._is_whole else float(text)

    def mutation(self) -> Any:
        """Returns what Ray Tune's population based training draws from; all values are numbers."""
        from ray import tune

        if self.form == "choice":
            return [float(value) for value in self.values]
        draw = tune.loguniform if self.form.startswith("log") else tune.uniform
        return draw(*self.values[:2])

    def words(self, value: str) -> list[str]:
        """Returns the words that set the option on a command line."""
        if value.lower() == "false":
            group, dot, name = self.option.rpartition(".")
            return [f"--{group}{dot}no-{name}"]
        return [f"--{self.option}", *([] if value.lower() == "true" else shlex.split(value))]

    @property
    def _is_whole(self) -> bool:
        return self.form.endswith("randint")

    @property
    def _step(self) -> float | None:
        return self.values[2] if self.form == "quniform" else None


def _key(value: str) -> float | str:
    """Returns a key that is equal for all spellings of a value, such as 1e-3 and 0.001."""
    try:
        return float(value)
    except ValueError:
        return value.lower()


def _decimal(number: float) -> float:
    """Removes binary rounding errors from a multiple of a step: returns 0.3 for 0.1 + 0.2."""
    return float(f"{number:.15g}")


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
    form, inside = call.groups()
    try:
        words = [" ".join(shlex.split(part)) for part in inside.split(",")]
        values = words if form == "choice" else [float(word) for word in words]
        return Parameter(option, form, tuple(_checked(form, values)))
    except ValueError as error:
        raise UsageError(
            f"--search {option}: expected {_FORMS[form]}, got ({inside}): {error}"
        ) from None


def _checked(form: str, values: list[Any]) -> Sequence[Any]:
    """Returns the arguments of a form; raises ValueError if they make no sense."""
    if form == "choice":
        if len(set(values)) < max(2, len(values)) or "" in values:
            raise ValueError("two different values or more are needed")
        return values
    if len(values) != _FORMS[form].count(",") + 1 or not all(map(math.isfinite, values)):
        raise ValueError(f"{_FORMS[form].count(',') + 1} numbers are needed")
    low, high, *rest = values
    if not low < high:
        raise ValueError("LOW must be below HIGH")
    if form.startswith("log") and low <= 0:
        raise ValueError("LOW must be above 0")
    if form.endswith("randint"):
        if low % 1 or high % 1:
            raise ValueError("whole numbers are needed")
        return [int(low), int(high)]
    for step in rest:
        if not 0 < step <= high - low:
            raise ValueError("STEP must be above 0 and at most HIGH - LOW")
        # The highest value; Optuna would reduce `high` to it with a warning.
        high = _decimal(low + math.floor((high - low) / step + 1e-9) * step)
    return [low, high, *rest]


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
        if not all(one.holds(self.defaults[one.option]) for one in self.parameters):
            return None
        return self.read(self.written(self.defaults))

    def distributions(self) -> dict[str, Any]:
        """Returns Optuna's distribution of each option."""
        return {one.option: one.distribution for one in self.parameters}

    def read(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Returns written values as the distributions have them."""
        return {one.option: one.read(values[one.option]) for one in self.parameters}

    def drawn(self, count: int) -> list[dict[str, str]]:
        """Returns values for the first trials of a population, as written: the defaults, if the
        search may choose them, and random ones.
        """
        import optuna

        study = _new_study(sampler=optuna.samplers.RandomSampler(seed=0))
        if self.first is not None:
            study.enqueue_trial(self.first)
        return [self.written(study.ask(self.distributions()).params) for _ in range(count)]

    def written(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Returns values as they are written on the command line."""
        return {one.option: one.write(values[one.option]) for one in self.parameters}

    def importance(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Returns the share of the differences that each option explains, the highest first.

        PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255): how much the values of the best quarter
        of the trials differ from those of all. A trial that was stopped counts with its last
        evaluation. Empty for fewer than four trials, and if their figures do not differ.

        Args:
          trials: all trials.
        """
        import optuna

        study = _new_study(direction="maximize")
        for one in trials:
            if one.state in (TrialState.DONE, TrialState.STOPPED) and one.evaluations:
                study.add_trial(
                    optuna.trial.create_trial(
                        params=self.read(one.values),
                        distributions=self.distributions(),
                        value=objective(one.evaluations, one.is_highest_best),
                    )
                )
        figures = [one.value for one in study.trials]
        if len(figures) < _FEWEST_FOR_IMPORTANCE or len(set(figures)) == 1:
            return {}
        with warnings.catch_warnings():  # Optuna warns about its experimental features.
            warnings.simplefilter("ignore")
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
            return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _new_study(**how: Any) -> Any:
    """Returns a study of Optuna, which logs nothing but errors."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(**how)
