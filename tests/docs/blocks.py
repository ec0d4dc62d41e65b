"""The Python blocks of the documentation, as programs.

A page is one program: its blocks in their order. Code that readers need not see, such as
definitions that the next block uses, or a check of its result, is in HTML comments:

    <!-- python
    data = make_data()
    -->

A comment of one line shortens the blocks below it:

    <!-- python: 120_000 -> 600 -->

A notebook is the program of its cells.
"""

import json
import re
from pathlib import Path

# The languages of fenced blocks. Commands are in indented blocks and have their own tests.
LANGUAGES = {"python", "text", "toml"}
_HIDDEN = re.compile(r"<!-- python$")
_REPLACED = re.compile(r"<!-- python: (.+) -> (.+) -->$")


def program(document: Path) -> str:
    """Returns the program of a page, empty if the page has no Python.

    Blank lines replace the text, so that the line numbers of a traceback are those of the page.

    Raises:
      ValueError: if a comment replaces what does not occur below it, or a block has no end.
    """
    if document.suffix == ".ipynb":
        cells = json.loads(document.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return "\n\n".join(code) + "\n"
    lines, replacements, end = [], {}, None
    for line in document.read_text().splitlines():
        code = ""
        if end is not None:
            is_visible = end == "```"
            if line == end:
                end = None
            else:
                code = line
                for old in replacements if is_visible else ():
                    if old in code:
                        code = code.replace(old, replacements[old][0])
                        replacements[old] = (replacements[old][0], True)
        elif line == "```python":
            end = "```"
        elif _HIDDEN.match(line):
            end = "-->"
        elif found := _REPLACED.match(line):
            replacements[found[1]] = (found[2], False)
        lines.append(code)
    unused = [old for old, (_, is_used) in replacements.items() if not is_used]
    if unused or end is not None:
        raise ValueError(f"{document}: expected {end or unused} in a later line, found none")
    return "\n".join(lines).strip("\n") and "\n".join(lines) + "\n"


def untested(document: Path) -> list[str]:
    """Returns the code of a page that no test would run, as one line per block.

    It is in a fenced block that is indented or of a language without a test, or it is Python in an
    indented block, where commands belong.
    """
    text = document.read_text()
    found = [
        f"{indent}```{language}"
        for indent, language in re.findall(r"^( *)```(.*)\n(?:.*\n)*?^ *```$", text, re.MULTILINE)
        if language not in LANGUAGES or indent
    ]
    outside = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", text, flags=re.DOTALL | re.MULTILINE)
    return found + re.findall(
        r"^ {4,}(?:import \w|from \w+ import|def |class |with |\w+ = |[\w.]+\(.*\)).*$",
        outside,
        re.MULTILINE,
    )
