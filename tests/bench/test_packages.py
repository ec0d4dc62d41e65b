"""The table of packages of environments."""

import json

from bench import packages


def test_the_page_has_the_table_of_the_committed_results():
    results = json.loads(packages.RESULT.read_text())
    page = packages.PAGE.read_text()
    assert packages.rewrite(page, results) == page
    works = [name for name, found in results.items() if found.get("state", "").startswith("yes")]
    assert all(f"| {results[name]['state'].partition(':')[0]} |" in page for name in works)


def test_reasons_and_replaced_versions_stand_in_the_last_column():
    text = "<!-- packages -->\nold\n<!-- end of packages -->\n"
    found = {"state": "yes: 9 learner steps", "pixels": "no camera", "replaced": "mujoco 3.3.7"}
    made = packages.rewrite(text, {"metaworld": found, "evogym": {"installation": "ERROR: none"}})
    rows = {line.split(" | ")[0]: line for line in made.splitlines()}
    assert rows["| metaworld 3.1.1"].endswith("| yes | no | `--no-deps`, mujoco 3.3.7 |")
    assert rows["| evogym 2.0.0"].endswith("| no | no | no wheel for Python 3.11 |")
    assert "old" not in made
