"""Every block of Python in the documentation runs, each page as one program."""

import json
import os

import pytest

from tests.docs import blocks
from tests.docs.programs import output
from tests.docs.references import DOCUMENTS, ROOT
from tests.suite import forked

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
PROGRAMS = {
    document: program
    for document in (*DOCUMENTS, *NOTEBOOKS)
    if (program := blocks.program(document))
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(420)
@pytest.mark.parametrize("document", PROGRAMS, ids=lambda path: path.name)
def test_blocks_run(document, tmp_path):
    path = tmp_path / f"{document.stem}_page.py"  # A file, because AutoGraph reads the source.
    path.write_text(PROGRAMS[document])
    places = os.pathsep.join([str(ROOT), str(ROOT / "docs" / "examples")])
    output(*forked.python(), path, cwd=tmp_path, PYTHONPATH=places, MPLBACKEND="Agg")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_code_is_untested(document):
    assert blocks.untested(document) == []


PAGE = """\
<!-- python
count = 100
-->
<!-- python: 5_000 -> 5 -->
Text.

```python
total = count + 5_000
```

<!-- python
assert total == 105
-->
"""


def test_programs_have_the_lines_of_the_page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    lines = blocks.program(path).splitlines()
    assert (lines[1], lines[7], lines[11]) == (
        "count = 100",
        "total = count + 5",
        "assert total == 105",
    )
    assert [line for line in lines if line] == [lines[1], lines[7], lines[11]]
    path.write_text("Text alone.\n")
    assert blocks.program(path) == ""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_as_it_ran(notebook):
    """From top to bottom, with what it printed and drew, and without errors."""
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert {"stream", "display_data"} <= kinds and "error" not in kinds
