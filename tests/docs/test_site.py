"""The site has every document and, in its reference, every public name.

`make check` builds it strictly: a broken link or a missing name is an error.
"""

import importlib
import re

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


def test_every_public_package_is_in_the_reference():
    """And so are its names, of which a page is made."""
    modules = importlib.import_module("rl_replicator")._MODULES.values()
    public = {*exporting(), *(f"rl_replicator.{module}" for module in modules)}
    documented = [module for modules in reference.PAGES.values() for module in modules]
    assert public <= {*documented} and len(documented) == len({*documented})


def nav():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]


def test_every_document_has_a_place():
    written = {pages.place(path) for path in (*DOCUMENTS, *(ROOT / "docs").glob("*.ipynb"))}
    written |= {f"reference/{page}.md" for page in reference.PAGES} | {commands.PAGE}
    complete = navigation.complete(nav(), sorted(path for path in written if "/" not in path))
    listed = list(navigation.paths(complete))
    assert len(listed) == len({*listed}) and {*listed} == written


def test_every_command_has_its_help_on_the_site():
    """`make check` makes the page."""
    subjects = [*commands.subjects()]
    listed = re.findall(r"^  (\S+)  ", commands.help_of([]), re.MULTILINE)
    assert [*dict.fromkeys(words[0] for words in subjects)] == listed
    assert ("train", "d4pg") in subjects
