"""The table of packages of environments."""

import json

from bench import packages


def test_the_page_has_the_table_of_the_committed_results():
    results = json.loads(packages.RESULT.read_text())
    page = packages.PAGE.read_text()
    assert packages.rewrite(page, results) == page
    works = [name for name, found in results.items() if found.get("state", "").startswith("yes")]
    assert all(f"| {results[name]['state'].partition(':')[0]} |" in page for name in works)
