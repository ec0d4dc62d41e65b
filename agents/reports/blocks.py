"""The building blocks of the sections of a report."""

import re
from collections.abc import Sequence

from agents.reports.charts import colour_class
from agents.reports.markup import Child, Html, element, joined

# An option in a text, with its value if that is a number or in capitals.
_OPTION = re.compile(r"(--[\w.-]*\w(?: (?:[A-Z]+|\d+)\b)?)")


def section(name: str, title: str, *body: Child, about: Child = None) -> Html:
    """Returns a section of the page.

    Args:
      name: its anchor.
      title: its heading.
      *body: its content.
      about: how to read it.
    """
    head = element("header", element("h2", title), about and element("p", about, class_="about"))
    return element("section", head, *body, id=name)


def table(head: Sequence[Child], rows: Sequence[Sequence[Child]], numeric: Sequence[int]) -> Html:
    """Returns a table, which scrolls sideways if it is too wide for the page.

    Args:
      head: names of the columns.
      rows: their cells; the first one heads its row.
      numeric: columns of numbers.
    """

    def style(index: int) -> str | None:
        return "number" if index in numeric else None

    heads = [element("th", cell, scope="col", class_=style(i)) for i, cell in enumerate(head)]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row", class_=style(0)),
            [element("td", cell, class_=style(i)) for i, cell in enumerate(row[1:], 1)],
        )
        for row in rows
    ]
    whole = element("table", element("thead", element("tr", heads)), element("tbody", body))
    return element("div", whole, class_="scroll", tabindex="0")


def config_name(index: int, label: str, text: str) -> Html:
    """Returns the letter of a config in its colour, and its name."""
    return joined(
        element("span", label, class_=f"letter {colour_class(index)}"),
        element("span", text, class_="config") if text else None,
    )


def sentence(text: str) -> Html:
    """Returns a text as a sentence, with its options in code style, which never wraps."""
    parts = _OPTION.split(f"{text[:1].upper()}{text[1:].removesuffix('.')}.")
    return joined(element("code", one) if i % 2 else one for i, one in enumerate(parts))


def hint(text: Child, kind: str = "") -> Html:
    """Returns a highlighted paragraph.

    Args:
      text: the text of the paragraph.
      kind: "good", "bad" or "" for its colour.
    """
    return element("p", text, class_=f"hint {kind}".strip())
