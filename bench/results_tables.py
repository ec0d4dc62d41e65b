"""Makes the tables of results in the README and in docs/ from docs/results/*.csv.

    PYTHONPATH=. python bench/results_tables.py

Copy the `results.csv` of a suite to docs/results/ first. `agents/suites/markdown.py` says how a
file asks for a table.
"""

from pathlib import Path

from agents.suites import markdown

_ROOT = Path(__file__).parents[1]


def main() -> None:
    for path in [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]:
        before = path.read_text()
        after = markdown.rewrite(before, _ROOT / "docs" / "results")
        if after != before:
            path.write_text(after)
            print(path.relative_to(_ROOT))


if __name__ == "__main__":
    main()
