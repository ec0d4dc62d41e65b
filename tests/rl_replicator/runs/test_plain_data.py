import dataclasses
import enum
import json
import math
import typing
from pathlib import Path

import pytest

from rl_replicator.cli import options
from rl_replicator.errors import ConfigError, UsageError, check_option
from rl_replicator.runs.plain_data import as_stored, from_plain, to_plain
from rl_replicator.runs.run_directory import settled


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass(frozen=True)
class Inner:
    x: int = 1
    paths: tuple[Path, ...] = ()

    def __post_init__(self):
        check_option(self.x > 0, "field.x", "at least 1", self.x)


@dataclasses.dataclass(frozen=True)
class Other:
    x: int = 1
    y: int = 2


def make(hint, value):
    """Returns a config with one field."""
    field = ("field", hint, dataclasses.field(default_factory=lambda: value))
    return dataclasses.make_dataclass("Config", [field], frozen=True)()


ROUND_TRIPS = [
    (bool, True, ["--no-field"]),
    (int, 3, ["--field", "4"]),
    (float, math.inf, ["--field", "1e-3"]),
    (str, "a", ["--field", ""]),
    (Path | None, Path("a"), ["--field", "None"]),
    (typing.Literal["auto", 1, None], 1, ["--field", "auto"]),
    (float | typing.Literal["auto"], "auto", ["--field", "0.5"]),
    (Color, Color.RED, ["--field", "BLUE"]),
    (list[int], [1, 2], ["--field", "3"]),
    (tuple[int, tuple[Color, float]], (1, (Color.RED, 0.5)), ["--field", "2", "BLUE", "1"]),
    (int | tuple[int, int], (1, 2), ["--field", "4"]),
    (tuple[Inner, ...], (Inner(5), Inner(6, (Path("a"),))), None),
    (dict[str, tuple[int, ...]], {"a": (1, 2)}, ["--field.a", "3"]),
    (dict[str, typing.Any], {"a": [1, None, {"b": 0.5}]}, None),
    (Inner, Inner(2, (Path("a"),)), ["--field.x", "3"]),
    (Inner | None, None, ["field:inner", "--field.x", "4"]),
    (Other | Inner, Inner(3), ["field:other", "--field.y", "4"]),
]


@pytest.mark.parametrize(("hint", "value", "words"), ROUND_TRIPS)
def test_a_config_comes_back_as_it_was(hint, value, words):
    config = make(hint, value)
    rebuilt = from_plain(type(config), json.loads(json.dumps(to_plain(config))))
    assert rebuilt == config == as_stored(config)
    assert type(rebuilt.field) is type(value)
    if words is not None:
        parsed = options.parse(type(config), "train", words)
        assert parsed != config  # The words change the value.
        assert as_stored(parsed) == parsed


def test_lists_for_tuples_and_nan_come_back():
    assert as_stored(make(tuple[int, ...], [1, 2])).field == (1, 2)
    assert math.isnan(as_stored(make(float, math.nan)).field)


@pytest.mark.parametrize(
    ("hint", "value", "error"),
    [
        (str | Path, Path("a"), r"'agent.field', got PosixPath\('a'\), .* restored as 'a'"),
        (typing.Callable, math.hypot, "'agent.field', got <built-in .* by its import path"),
        (dict[str, object], {"a": math.hypot}, "'agent.field', got {'a': "),
        (frozenset[str], frozenset("ab"), "'agent.field', got a set, .* use a tuple"),
        (typing.Any, Color.RED, "'agent.field', got <Color.RED: 'r'>, .* restored as 'r'"),
    ],
)
def test_what_would_not_come_back_is_refused(hint, value, error):
    with pytest.raises(ConfigError, match=f"expected .*{error}"):
        as_stored(make(hint, value), "agent.")


def test_a_config_that_changes_with_each_copy_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        rate: float = 1.0

        def __post_init__(self):
            object.__setattr__(self, "rate", self.rate * 2)

    with pytest.raises(ConfigError, match=r"'rate', got 2.0, .* restored as 4.0; .* __post_init__"):
        as_stored(Scaled())


@pytest.mark.parametrize(
    ("hint", "plain", "error"),
    [
        (int, 3.5, "expected a valid integer for 'field', got 3.5; correct it"),
        (int, True, "a valid integer for 'field', got True"),
        (int, "3", "a valid integer for 'field', got '3'"),
        (typing.Literal[1, "a"], 2, "expected 1 or 'a' for 'field', got 2"),
        (Color, "g", "expected 'r' or 'b' for 'field', got 'g'; correct it"),
        (tuple[int, ...] | None, [1, "a"], r"integer for 'field\.1', got 'a'"),
        (dict[str, int], {"a": "b"}, r"integer for 'field\.a', got 'b'"),
        (Inner, {"x": "a"}, r"integer for 'field\.x', got 'a'"),
        (Inner, {"x": 0}, "^--field.x: expected at least 1, got 0$"),
        (Inner, {"z": 1}, "settings that exist, got 'field.z'; 'rl-replicator train mine --help'"),
    ],
)
def test_a_wrong_value_in_a_file_is_named(hint, plain, error):
    with pytest.raises(UsageError, match=error):
        from_plain(type(make(hint, None)), {"field": plain}, "rl-replicator train mine")


def test_a_setting_without_default_is_missed():
    kind = dataclasses.make_dataclass("Config", [("field", int)])
    with pytest.raises(UsageError, match="expected a setting 'agent.field', got none; add it"):
        from_plain(kind, {}, group="agent.")


def test_only_what_is_auto_becomes_that_of_the_run():
    @dataclasses.dataclass(frozen=True)
    class Config:
        top: str = "auto"
        rate: float = 1.0

    stored = {"top": "valid", "rate": 2.0}
    assert settled(Config(), stored) == Config("valid")
    assert settled(Config("same"), stored) == Config("same")
    assert settled(Config(), {}) == Config()


def test_text_that_the_locale_cannot_write_is_refused_in_one_line():
    """Such as the bytes of a path in UTF-8 where the locale is ASCII."""
    message = r"locale for 'field', got {}; set LC_ALL=C.UTF-8$"
    with pytest.raises(ConfigError, match=message.format(r"PosixPath\('r.udcc3.udca4'\)")):
        as_stored(make(Path, Path("r\udcc3\udca4")))
    with pytest.raises(ConfigError, match=message.format("'r.udcc3.udca4'")):  # From a command.
        from_plain(type(make(Path, None)), {"field": "r\udcc3\udca4"})
