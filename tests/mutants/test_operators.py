"""The mutants of small functions, listed by hand."""

from tests.mutants.operators import mutants

SOURCE = '''\
def update(x: int = 1, *, flag=True):
    """Docstrings, annotations and messages of errors (1 < 2) have no mutants."""
    if x < 2 and flag is not None:
        raise ValueError(f"expected {x + 1}")
    x = max(x, -3)
    self.assign(where(x, y))
    return -x / 2.0
'''


def test_mutants_of_a_small_function():
    assert [mutant.name.removeprefix("update: ") for mutant in mutants(SOURCE)] == [
        "True -> False",
        "1 -> 2",
        "x < 2 and flag is not None -> not (x < 2 and flag is not None)",
        "x < 2 and flag is not None -> x < 2 or flag is not None",
        "x < 2 -> x <= 2",
        "x < 2 -> x >= 2",
        "2 -> 3",
        "flag is not None -> flag is None",
        "raise ValueError(f'expected {x + 1}') -> pass",
        "x = max(x, -3) -> pass",
        "max(x, -3) -> min(x, -3)",
        "max(x, -3) -> x",
        "-3 -> 3",
        "self.assign(where(x, y)) -> pass",
        "where(x, y) -> where(y, x)",
        "-x / 2.0 -> -x * 2.0",
        "-x -> x",
        "2.0 -> 4.0",
    ]


def test_a_mutant_differs_in_one_place():
    found = {mutant.name: mutant for mutant in mutants(SOURCE)}
    mutant = found["update: -x -> x"]
    assert mutant.line == 7 and mutant.source == SOURCE.replace("-x /", "(x) /")
