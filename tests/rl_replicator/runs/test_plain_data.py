import dataclasses
import enum
import json
import math
import typing
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import pytest

from rl_replicator.cli import options
from rl_replicator.errors import ConfigError, UsageError
from rl_replicator.runs.plain_data import as_stored, from_plain, to_plain
from rl_replicator.runs.run_directory import settled


class Color(enum.Enum):
    RED = (1, 0)
    BLUE = (0, 1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Inner:
    x: int = 1
    paths: tuple[Path, ...] = ()


@dataclasses.dataclass(frozen=True)
class Other:
    x: int = 1
    y: int = 2
    paths: tuple[Path, ...] = ()


class Activation:
    def __repr__(self):
        return "Activation()"


Size = typing.NewType("Size", int)


def make(hint, value):
    """Returns a config with one field."""
    field = ("field", hint, dataclasses.field(default_factory=lambda: value))
    return dataclasses.make_dataclass("Config", [field], frozen=True)()


def rebuilt(config):
    return from_plain(type(config), json.loads(json.dumps(to_plain(config))))


ROUND_TRIPS = [
    (bool, True, ["--no-field"]),
    (int, 3, ["--field", "4"]),
    (float, math.inf, ["--field", "1e-3"]),
    (str, "a", ["--field", ""]),
    (Path, Path("a/b"), ["--field", "c"]),
    (Size, 3, ["--field", "4"]),
    (typing.Final[int], 3, None),
    (typing.Literal["auto", 1, None], 1, ["--field", "auto"]),
    (typing.Literal[Color.RED, "all"], Color.RED, ["--field", "all"]),
    (float | typing.Literal["auto"], "auto", ["--field", "0.5"]),
    (Color, Color.RED, ["--field", "BLUE"]),
    (Level, Level.LOW, ["--field", "HIGH"]),
    (Level | int, Level.HIGH, ["--field", "7"]),
    (int | None, None, ["--field", "3"]),
    (Path | None, Path("a"), ["--field", "None"]),
    (bool | int, 2, ["--field", "True"]),
    (list[int], [1, 2], ["--field", "3"]),
    (list, [1, "a"], None),
    (tuple[Path, ...], (Path("a"),), ["--field", "b", "c"]),
    (tuple[int, str], (1, "a"), ["--field", "2", "3"]),
    (tuple[int, tuple[Color, float]], (1, (Color.RED, 0.5)), ["--field", "2", "BLUE", "1"]),
    (tuple[int, ...] | None, (), ["--field", "1"]),
    (int | tuple[int, int], (1, 2), ["--field", "4"]),
    (tuple[Inner, ...], (Inner(5), Inner(6, (Path("a"),))), None),
    (Sequence[int], (1, 2), None),
    (Sequence[str] | None, ("a",), ["--field", "None"]),
    (set[int], {3, 1, 2}, ["--field", "7", "5"]),
    (frozenset[Color], frozenset(Color), ["--field", "RED"]),
    (Set[str], frozenset("ab"), ["--field", "c"]),
    (dict[str, float], {}, ["--field", "a", "1"]),
    (dict[str, tuple[int, ...]], {"a": (1, 2)}, ["--field.a", "3"]),
    (dict[Color, int], {Color.RED: 3}, ["--field.RED", "4"]),
    (Mapping[str, Inner], {"a": Inner(4)}, ["--field.a.x", "3"]),
    (dict[str, typing.Any], {"a": [1, None, {"b": 0.5}]}, None),
    (Inner, Inner(2, (Path("a"),)), ["--field.x", "3"]),
    (Inner | None, Inner(2), ["field:none"]),
    (Inner | None, None, ["field:inner", "--field.x", "4"]),
    (Other | Inner, Inner(3), ["field:other", "--field.y", "4"]),
]


# Ids without values: the order of a set differs between the processes that collect the tests.
@pytest.mark.parametrize(
    ("hint", "value", "words"), ROUND_TRIPS, ids=[str(hint)[:60] for hint, *_ in ROUND_TRIPS]
)
def test_a_config_comes_back_as_it_was(hint, value, words):
    config = make(hint, value)
    assert rebuilt(config) == config
    assert type(rebuilt(config).field) is type(value)
    assert as_stored(config) == config
    if words is None:
        return
    parsed = options.parse(type(config), "train", words)
    assert parsed != config  # The words change the value.
    assert as_stored(parsed) == rebuilt(parsed) == parsed


def test_a_sequence_of_the_command_line_is_the_tuple_that_comes_back():
    config = make(Sequence[int], (1, 2))
    parsed = options.parse(type(config), "train", ["--field", "1", "2"])
    assert parsed.field == [1, 2]
    assert as_stored(parsed) == config


def test_equal_configs_are_stored_alike():
    field = frozenset(["b", "a", "c"])
    assert to_plain(make(frozenset[str], field)) == {"field": ["a", "b", "c"]}
    assert to_plain(make(set[int | str], {2, "b", 1, "a"})) == {"field": ["a", "b", 1, 2]}
    assert to_plain(make(Color, Color.RED)) == {"field": "RED"}


def test_nan_comes_back():
    assert math.isnan(as_stored(make(float, math.nan)).field)


@pytest.mark.parametrize(
    ("hint", "value", "error"),
    [
        (
            str | Path,
            Path("a"),
            r"'field', got str \| pathlib.Path: PosixPath\('a'\) would be restored as 'a'; "
            "annotate 'field' with one type",
        ),
        (Path | str, "a", r"'a' would be restored as PosixPath\('a'\)"),
        (Color | str, "RED", "'RED' would be restored as <Color.RED"),
        (set[int] | list[int], [2, 1], r"\[2, 1\] would be restored as {1, 2}"),
        (Inner | Other, Inner, "'field', got type: <class .*Inner'> cannot be stored"),
        (
            Activation,
            Activation(),
            r"'field', got Activation: Activation\(\) cannot be stored; use",
        ),
        (dict[str, Activation], {"a": Activation()}, r"'field\.a', got Activation"),
        (
            typing.Callable,
            math.hypot,
            "got builtin_function_or_method: .* give its import path as a string, 'math:hypot'$",
        ),
        (
            typing.Callable,
            lambda: None,
            "cannot be stored; .* 'package.module:function', and define it in such a module$",
        ),
        (dict[int, int], {1: 2}, "strings as keys of 'field', got 1; use strings"),
        (typing.Any, Level.LOW, "got Any: <Level.LOW: 1> would be restored as 'LOW'"),
        (int, None, "'field', got int: None cannot be rebuilt as one; annotate 'field' with the"),
        (Inner, Other(), r"got Inner: Other\(x=1, .* cannot be rebuilt as one"),
    ],
)
def test_what_would_not_come_back_is_refused(hint, value, error):
    with pytest.raises(ConfigError, match=f"expected .*{error}"):
        as_stored(make(hint, value))


def test_the_innermost_setting_is_named():
    outer = make(Inner, make(int, None))
    with pytest.raises(ConfigError, match="can restore for 'agent.field.field', got int"):
        as_stored(outer, "agent.")


def test_a_config_that_changes_with_each_copy_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        rate: float = 1.0
        half: float = dataclasses.field(default=0.0, init=False)

        def __post_init__(self):
            object.__setattr__(self, "rate", self.rate * 2)
            object.__setattr__(self, "half", self.rate / 2)

    error = r"expected Scaled\(...\) to leave rate = 2.0 unchanged, got 4.0; change __post_init__"
    with pytest.raises(ConfigError, match=error):
        as_stored(Scaled())


def test_a_field_that_follows_from_others_is_not_stored():
    @dataclasses.dataclass(frozen=True)
    class Derived:
        rate: float = 1.0
        half: float = dataclasses.field(default=0.0, init=False)

        def __post_init__(self):
            object.__setattr__(self, "half", self.rate / 2)

    assert to_plain(Derived(3.0)) == {"rate": 3.0}
    assert as_stored(Derived(3.0)).half == 1.5


@pytest.mark.parametrize(
    ("hint", "plain", "error"),
    [
        (int, 3.0, "expected a value of type int for 'field', got 3.0; correct it"),
        (int, True, "type int for 'field', got True"),
        (typing.Literal[1, "a"], 1.0, "expected 1 or 'a' for 'field', got 1.0"),
        (Color, "GREEN", "expected 'RED' or 'BLUE' for 'field', got 'GREEN'; correct it"),
        (tuple[int, str], [1], r"expected 2 values for 'field', got 1: \[1\]; correct it"),
        (tuple[int, str], [1, 2], r"type str for 'field\[1\]', got 2"),
        (tuple[int, ...] | None, [1, "a"], r"type int for 'field\[1\]', got 'a'"),
        (int | None, "a", r"type int \| None for 'field', got 'a'"),
        (Sequence[str], "abc", r"Sequence\[str\] for 'field', got 'abc'"),
        (set[typing.Any], [[1]], r"items without lists in them for 'field', got \[\[1\]\]"),
        (dict[str, int], {"a": "b"}, r"type int for 'field\.a', got 'b'"),
        (dict[str, int], [1], r"type dict\[str, int\] for 'field', got \[1\]"),
        (Inner | None, {"x": "a"}, r"type int for 'field\.x', got 'a'"),
        (Inner | None, {"z": 1}, r"got 'field\.z'; did you mean 'field\.x'\?|lists them"),
        (Inner | Other, {"x": "a"}, r"Inner \| .*Other for 'field', got {'x': 'a'}; correct it"),
    ],
)
def test_a_wrong_value_in_a_file_is_named(hint, plain, error):
    kind = type(make(hint, None))
    with pytest.raises(UsageError, match=error):
        from_plain(kind, {"field": plain}, "rl-replicator train mine")


def test_what_was_auto_has_the_type_that_it_had():
    config = make(tuple[Path, ...] | typing.Literal["auto"], "auto")
    assert settled(config, {"field": ["a"]}).field == (Path("a"),)


def test_nested_settings_that_are_auto_become_those_of_the_run():
    @dataclasses.dataclass(frozen=True)
    class Net:
        padding: str = "auto"
        width: int = 3

    @dataclasses.dataclass(frozen=True)
    class Config:
        net: Net = Net()
        top: str = "auto"

    stored = {"net": {"padding": "same", "width": 5}, "top": "valid"}
    assert settled(Config(), stored) == Config(Net("same"), "valid")  # Only "auto" is replaced.
    assert settled(Config(Net("full")), stored) == Config(Net("full"), "valid")
    assert settled(Config(), {}) == Config()
