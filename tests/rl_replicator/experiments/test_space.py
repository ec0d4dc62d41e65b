"""Search expressions."""

import dataclasses

import optuna
import pytest

from rl_replicator.errors import UsageError
from rl_replicator.experiments import space
from rl_replicator.experiments.space import Search
from rl_replicator.experiments.trial import Trial, TrialEvaluation, TrialState


@pytest.mark.parametrize(
    ("text", "values", "examples"),
    [
        ("choice(1,3,5)", ("1", "3", "5"), ["1", "3", "5"]),
        ("choice( relu , 'e u' )", ("relu", "e u"), ["relu", "e u"]),
        ("choice(256 256, 512  512)", ("256 256", "512 512"), ["256 256", "512 512"]),
        ("uniform(-1, 2.5)", (-1.0, 2.5), ["-1.0", "2.5"]),
        # Its ends would be accepted by an option of whole numbers, but not the numbers between.
        ("loguniform(16,256)", (16.0, 256.0), ["16.0", "256.0"]),
        ("quniform(0, 1, 0.3)", (0.0, 0.9, 0.3), ["0.0", "0.9"]),
        ("quniform(16,64,16)", (16.0, 64.0, 16.0), ["16", "64"]),
        ("lograndint(16,1024)", (16, 1024), ["16", "1024"]),
    ],
)
def test_expressions(text, values, examples):
    parsed = space.parse(f"a.n_step={text}")
    assert (parsed.option, parsed.values, parsed.examples()) == ("a.n-step", values, examples)
    assert all(parsed.holds(one) for one in examples)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "expected 'option=expression'"),
        ("a b=choice(1,2)", "expected 'option=expression'"),
        ("x=__import__('os').system('true')", "expected choice(A, B, ...)"),
        ("x=unifrom(0,1)", "did you mean uniform?"),
        ("x=choice(1,,2)", "got (1,,2): two different values or more"),
        ("x=choice(1,1)", "two different values or more"),
        ("x=choice('1,2)", "No closing quotation"),
        ("x=uniform(0)", "expected uniform(LOW, HIGH), got (0): 2 numbers are needed"),
        ("x=uniform(0,one)", "'one'"),
        ("x=uniform(0,inf)", "2 numbers are needed"),
        ("x=uniform(1,1)", "LOW must be below HIGH"),
        ("x=loguniform(0,1)", "LOW must be above 0"),
        ("x=randint(1,2.5)", "whole numbers"),
        ("x=quniform(0,1,2)", "STEP must be above 0 and at most HIGH - LOW"),
    ],
)
def test_bad_expressions_are_one_line(text, words):
    with pytest.raises(UsageError) as caught:
        space.parse(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_option_is_searched_once():
    with pytest.raises(UsageError, match="once for x, got it 2 times"):
        space.parse_all(["x=choice(1,2)", "y=choice(1,2)", "x=uniform(0,1)"])
    with pytest.raises(UsageError, match="at least once"):
        space.parse_all([])


def test_words_of_a_command():
    parameter = space.parse("a.layers=choice(256 256,64)")
    assert parameter.words("256 256") == ["--a.layers", "256", "256"]
    flag = space.parse("a.is-steep=choice(true,false)")
    assert (flag.words("true"), flag.words("false")) == (["--a.is-steep"], ["--a.no-is-steep"])


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("x=quniform(100000,2000000,100000)", 2e6, "2000000"),
        ("x=quniform(0,1,0.1)", 0.1 + 0.2, "0.3"),
        ("x=uniform(0.99,0.9999999)", 1.0, "0.9999999"),
        ("x=loguniform(0.0001234567,1)", 0.0001234566, "0.0001234567"),
        ("x=lograndint(16,1024)", 15.999999999999998, "16"),
        ("x=choice(1e-3,relu)", 0.001, "1e-3"),
    ],
)
def test_values_are_written_exactly(text, value, words):
    """A rounded number may be outside the search, or not of the option's type."""
    assert space.parse(text).write(value) == words


def test_what_is_drawn():
    """The kind of each distribution, and its ends."""
    texts = ["a=uniform(1,3)", "b=loguniform(1e-4,1)", "c=lograndint(1,9)", "d=quniform(0,1,0.25)"]
    search = Search(
        tuple(space.parse_all(texts)), "random", "asha", 1, 3, None, dict.fromkeys("abcd", "")
    )
    drawn = search.drawn(400)
    columns = {name: [float(one[name]) for one in drawn] for name in "abcd"}
    assert min(columns["a"]) >= 1 and max(columns["a"]) <= 3
    assert sum(x < 2 for x in columns["a"]) == pytest.approx(200, abs=50)
    assert sum(x < 1e-2 for x in columns["b"]) == pytest.approx(200, abs=50)
    assert set(columns["c"]) == set(range(1, 10)) and columns["c"].count(1) > 80
    assert set(columns["d"]) == {0, 0.25, 0.5, 0.75, 1}
    for parameter, middle in zip(space.parse_all(texts[:2]), (2, 1e-2), strict=True):
        mutations = parameter.mutation().sample(size=400, random_state=0)
        assert sum(x < middle for x in mutations) == pytest.approx(200, abs=50)


def test_the_first_trial_has_the_defaults_if_the_search_may_choose_them():
    parameters = tuple(space.parse_all(["x=uniform(0,1)", "kind=choice(a,None)"]))

    def first(**defaults):
        return Search(parameters, "tpe", "fifo", 1, 3, None, defaults).first

    assert first(x="0.5", kind="None") == {"x": 0.5, "kind": "None"}
    assert first(x="1.5", kind="a") is first(x="0.5", kind="b") is None
    assert first(x="relu", kind="a") is None


def test_the_importance_of_an_option_that_explains_everything(caplog):
    parameters = tuple(space.parse_all(["x=uniform(0,1)", "y=uniform(0,1)"]))
    search = Search(parameters, "tpe", "fifo", 1, 3, None, {"x": "", "y": ""})
    trials = []
    for number, values in enumerate(search.drawn(40)):
        row = TrialEvaluation(10, float(values["x"]), 0.0, 0.0)
        trials.append(
            Trial(
                f"trial-{number}", values, TrialState.DONE, is_highest_best=False, evaluations=[row]
            )
        )
    optuna.logging.set_verbosity(optuna.logging.INFO)  # As in a process that starts no trial.
    optuna.logging.enable_propagation()
    shares = search.importance(trials)
    optuna.logging.disable_propagation()
    assert not caplog.records
    assert list(shares) == ["x", "y"] and shares["x"] > 0.8
    assert search.importance(trials[:3]) == {}
    equal = [dataclasses.replace(one, evaluations=[TrialEvaluation(10, 0, 0, 0)]) for one in trials]
    assert search.importance(equal) == {}
