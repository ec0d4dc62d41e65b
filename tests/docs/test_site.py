"""The site has every document and, in its reference, every public name.

`make check` builds it strictly: a broken link or a missing name is an error.
"""

import ast
import importlib
import re

import pytest
import yaml

from docs.site import commands, navigation, pages, reference
from tests import structure
from tests.docs.references import DOCUMENTS, ROOT

# Packages whose `__all__` is for other modules of this project.
INTERNAL = {
    "environments.flat",  # Users have environments.Environment.
}


def exporting():
    """Every package with an `__all__`, by its text: every process that collects tests runs it."""
    inits = [path for name in structure.PACKAGES for path in (ROOT / name).rglob("__init__.py")]
    found = (path for path in inits if re.search("^__all__ = ", path.read_text(), re.MULTILINE))
    return sorted({".".join(path.parent.relative_to(ROOT).parts) for path in found} - INTERNAL)


@pytest.mark.parametrize("package", exporting())
def test_every_public_name_is_in_the_reference(package):
    (page,) = (page for page, modules in reference.PAGES.items() if package in modules)
    text = reference.page(page)
    if package not in ("agents", "rl_replicator"):  # The others have no lazy names.
        (names,) = (
            ast.literal_eval(node.value)
            for node in structure.modules()[package].tree.body
            if ast.unparse(node).startswith("__all__ = ")
        )
    else:
        names = importlib.import_module(package).__all__
    shown = set(re.findall(r'"heading": "(\w+)"|^##+ (\w+)$', text, re.MULTILINE))
    assert {*names} <= {name for pair in shown for name in pair}


def test_the_modules_of_rl_replicator_have_pages():
    rr = importlib.import_module("rl_replicator")
    text = reference.page("rl_replicator")
    for name, module in rr._MODULES.items():
        assert re.search(
            rf"^## {name}\n\nThe module \[`rl_replicator.{module}`\]\(\w+\.md\)", text, re.MULTILINE
        )


def nav():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]


def test_every_document_has_a_place():
    written = {pages.place(path) for path in (*DOCUMENTS, *(ROOT / "docs").glob("*.ipynb"))}
    written |= {f"reference/{page}.md" for page in reference.PAGES} | {commands.PAGE}
    complete = navigation.complete(nav(), sorted(path for path in written if "/" not in path))
    listed = list(navigation.paths(complete))
    assert len(listed) == len({*listed}) and {*listed} == written


def test_linked_files_have_pages():
    linked = {pages.place(target) for path in pages.documents() for target in pages.targets(path)}
    assert {"launchpad.md", "dataflow.svg", "source/agents/program.py.md"} <= linked
    assert "def make_program" in pages.source_page(ROOT / "agents" / "program.py")
    assert "- `anchors.csv`" in pages.source_page(ROOT / "docs" / "results")


def test_every_command_has_its_help_on_the_site():
    text = commands.page()
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    listed = re.findall(r"^  (\S+)  ", commands.help_of([]), re.MULTILINE)
    assert [*dict.fromkeys(heading.split()[0] for heading in headings)] == listed
    sections = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    for heading, section in zip(headings, sections, strict=True):
        assert f"usage: rl-replicator {heading}" in section and "--help" in section
    assert "--agent.n-step" in sections[headings.index("train d4pg")]
