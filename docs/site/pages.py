"""Adds pages from files outside docs/, and makes links work both on the site and on GitHub.

A hook of mkdocs. The Markdown links to files of the repository, as GitHub requires. On the site, a
link to a document leads to its page, and a link to a source file or a folder to a page that shows
it.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Documents that are not directly in docs/, and the names of their pages.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "launchpad/README.md": "launchpad.md",
    "docs/results/ablations.md": "ablations.md",
    "docs/results/agents.md": "results-agents.md",
    "docs/results/packages.md": "packages.md",
    "bench/results/README.md": "measurements.md",
}
SOURCES = "source"
_MEDIA = (".gif", ".mp4", ".png", ".svg", ".webp")
_LANGUAGES = {".py": "python", ".json": "json", ".sh": "bash", ".toml": "toml", ".yaml": "yaml"}
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_HIDDEN_CODE = re.compile(r"^<!-- python.*?-->\n", re.DOTALL | re.MULTILINE)  # For tests only.
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents of other folders, the notebooks, and the files that documents link to."""
    for path, name in ELSEWHERE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for notebook in sorted(DOCS.glob("*.ipynb")):
        files.remove(files.src_uris[notebook.name])
        page = notebook.with_suffix(".md").name
        files.append(File.generated(config, page, content=as_markdown(notebook)))
    shown = {
        target
        for document in documents()
        for target in targets(document)
        if place(target).startswith(f"{SOURCES}/")
    }
    for path in sorted(shown):
        files.append(File.generated(config, place(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces links to files of the repository with links to pages; drops hidden code."""
    origins = {name: path for path, name in ELSEWHERE.items()}
    uri = page.file.src_uri
    if uri.startswith(("reference/", f"{SOURCES}/")):
        return markdown
    origin = ROOT / origins.get(uri, f"docs/{uri}")

    def replaced(match: re.Match[str]) -> str:
        target = _target(origin, match[2])
        if target is None:
            return match[0]
        here = os.path.relpath(place(target), Path(uri).parent)
        return f"{match[1]}{here}{match[3] or ''}{match[4]}"

    return _LINK.sub(replaced, _HIDDEN_CODE.sub("", markdown))


def documents() -> list[Path]:
    """Returns the documents of the site that are written by hand."""
    return [*(ROOT / path for path in ELSEWHERE), *sorted(DOCS.glob("*.md"))]


def targets(document: Path) -> Iterator[Path]:
    """Yields the files and folders that a document links to."""
    for match in _LINK.finditer(document.read_text()):
        target = _target(document, match[2])
        if target is not None:
            yield target


def place(target: Path) -> str:
    """Returns the path of a repository file's page on the site, relative to the site's root."""
    path = target.relative_to(ROOT).as_posix()
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if target.suffix in _MEDIA and target.is_relative_to(DOCS):
        return path.removeprefix("docs/")
    if target.suffix in (".md", ".ipynb") and target.parent == DOCS:
        return target.with_suffix(".md").name
    return f"{SOURCES}/{path}.md"


def source_page(target: Path) -> str:
    """Returns a page that shows a file, or lists the files of a folder."""
    path = target.relative_to(ROOT).as_posix()
    title = f"{_HIDDEN}# {path}\n\n"
    if target.is_dir():
        return title + "".join(f"- `{file.name}`\n" for file in sorted(target.iterdir()))
    language = _LANGUAGES.get(target.suffix, "text")
    return f"{title}~~~~~~{language}\n{target.read_text()}\n~~~~~~\n"


def as_markdown(notebook: Path) -> str:
    """Returns a notebook as Markdown: its texts, its code, and the output of the code."""
    blocks = []
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(text)
            continue
        blocks.append(f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).replace("\n", "")
                blocks.append(f"![](data:image/png;base64,{image})")
            elif printed := "".join(output.get("text", data.get("text/plain", ""))):
                blocks.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


def _target(document: Path, link: str) -> Path | None:
    """Returns the file or folder that a link leads to; None for URLs and missing files."""
    if re.match(r"[a-z]+:", link):
        return None
    target = Path(os.path.normpath(document.parent / link))
    return target if target.exists() else None
