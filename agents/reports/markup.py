"""HTML from Python: elements whose text is always escaped."""

import html
from collections.abc import Iterable
from typing import TypeAlias

# Elements without content and end tag.
_VOID = frozenset({"br", "img", "link", "meta", "source"})


class Html(str):
    """Text that is HTML already."""


Child: TypeAlias = "str | Iterable[Child] | None"


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Returns an element.

    Args:
      name: the name of the element.
      *children: text, which is escaped unless it is `Html`; None for nothing; or several of these.
      **attributes: by name, without a trailing underscore (`class_`), and with hyphens in place of
        underscores (`aria_label`). None and False leave an attribute out, True gives it no value.
    """
    given = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """Returns children one after the other; see `element`."""
    return Html("".join(_text(child) for child in children))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(child, quote=False)
    return joined(*child)
