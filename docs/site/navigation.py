"""Completes the navigation with all documents, and lists them in `llms.txt` for language models.

A hook of mkdocs. The format of the list is that of llmstxt.org.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[2]
DEFAULT_SECTION = "How-to"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the documents that mkdocs.yml does not name to the how-to guides, by their titles."""
    config.nav = complete(config.nav, [path.name for path in sorted((ROOT / "docs").glob("*.md"))])
    return config


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Stores the page's summary."""
    _SUMMARIES[page.file.src_uri] = (page.title, page.url, summary(page.markdown))
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Writes llms.txt."""
    text = index(config.site_name, config.site_description, config.nav, _SUMMARIES)
    (Path(config.site_dir) / "llms.txt").write_text(text)


_SUMMARIES: dict[str, tuple[str, str, str]] = {}


def complete(nav: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Returns a navigation with all documents.

    Args:
      nav: sections by title, as in mkdocs.yml.
      names: names of documents in docs/.
    """
    listed = set(paths(nav))
    missing = [name for name in names if name not in listed]
    return [
        {title: [*entry, *missing] if title == DEFAULT_SECTION else entry}
        for section in nav
        for title, entry in section.items()
    ]


def paths(nav: Any) -> Iterator[str]:
    """Yields the pages of a navigation, or of a part of it."""
    if isinstance(nav, str):
        yield nav
        return
    for entry in nav.values() if isinstance(nav, dict) else nav:
        yield from paths(entry)


def index(
    name: str, description: str, nav: Sequence[Any], pages: dict[str, tuple[str, str, str]]
) -> str:
    """Returns the list of all pages.

    Args:
      name: name of the site.
      description: description of the site, one sentence.
      nav: sections by title.
      pages: title, address and summary of each page, by its path.
    """
    lines = [f"# {name}", "", f"> {description}", ""]
    for section in nav:
        for title, entry in section.items():
            lines += [f"## {title}", ""]
            for path in paths(entry):
                page, url, text = pages[path]
                lines.append(f"- [{page}]({url or './'})" + (f": {text}" if text else ""))
            lines.append("")
    return "\n".join(lines)


def summary(markdown: str) -> str:
    """Returns the first sentence of a page, without its links."""
    paragraphs = re.split(r"\n\s*\n", markdown.strip())
    texts = [text for text in paragraphs if re.match(r"[A-Za-z*\[]|`(?!`)", text)]
    text = " ".join(texts[0].split()) if texts else ""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.split(r"(?<=[\w`)]\.)\s(?=[A-Z`])", text)[0]
