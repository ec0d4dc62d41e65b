"""Generates the pages of the reference: the docstrings of each public package's public names.

A hook of mkdocs. mkdocstrings reads the docstrings without importing anything; only packages with a
table of lazy imports are imported here, which is cheap.
"""

import ast
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FOLDER = "reference"

# Page -> modules whose public names it documents.
PAGES: Mapping[str, tuple[str, ...]] = {
    "rl_replicator": ("rl_replicator",),
    "collectives": ("rl_replicator.collectives", "rl_replicator.collectives.randomness"),
    "optimizers": (
        "rl_replicator.optimizers",
        "rl_replicator.optimizers.micro_batches",
        "rl_replicator.optimizers.schedules",
    ),
    "layers": ("rl_replicator.layers.batch_norm", "rl_replicator.layers.precision"),
    "checkpoints": ("rl_replicator.checkpoints", "rl_replicator.checkpoints.parts"),
    "runs": (
        "rl_replicator.runs.metrics",
        "rl_replicator.runs.plain_data",
        "rl_replicator.runs.run_directory",
        "rl_replicator.runs.trackers",
    ),
    "learners": (
        "rl_replicator.learners",
        "rl_replicator.learners.resnet",
        "rl_replicator.learners.sngan",
    ),
    "agents": (
        "agents",
        "agents.agent",
        "agents.off_policy_agent",
        "agents.config",
        "agents.replay.config",
        "agents.learning.replay_learner",
        "agents.learning.targets",
        "agents.networks.actor_critic",
        "agents.runs.command",
    ),
    "d4pg": ("agents.d4pg.config", "agents.d4pg.losses"),
    "td3": ("agents.td3.config", "agents.td3.losses"),
    "sac": ("agents.sac.config", "agents.sac.losses"),
    "environments": ("environments", "environments.suite"),
    "launchpad": ("launchpad", "launchpad.upstream.courier"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages to the site."""
    for name in PAGES:
        files.append(File.generated(config, f"{FOLDER}/{name}.md", content=page(name)))
    return files


def page(name: str) -> str:
    """Returns the Markdown of a page, with an instruction to mkdocstrings for each name."""
    modules = PAGES[name]
    if len(modules) == 1:
        return "\n\n".join([f"# {modules[0]}", *_blocks(modules[0], level=2)]) + "\n"
    blocks = [f"# {name if '.' in name else _package(modules)}"]
    for module in modules:
        blocks += [f"## {module}", *_blocks(module, level=3)]
    return "\n\n".join(blocks) + "\n"


def public_names(module: str) -> dict[str, str] | None:
    """Returns the names of a module's `__all__`, and the path of the object that each refers to.

    Returns:
      Dotted paths by name; None if the module has no `__all__`.
    """
    tree = _tree(module)
    tables = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "__all__" not in tables:
        return None
    places = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if "_LAZY" not in tables:
        exported = ast.literal_eval(tables["__all__"])
        return {name: places.get(name, f"{module}.{name}") for name in exported}
    sys.path.insert(0, str(ROOT))
    try:
        package = importlib.import_module(module)
    finally:
        sys.path.remove(str(ROOT))
    places |= {name: f"{place}.{name}" for name, place in package._LAZY.items()}
    places |= getattr(package, "_MODULES", {})
    return {
        name: places[name]
        if places[name].partition(".")[0] == module
        else f"{module}.{places[name]}"
        for name in package.__all__
    }


def _blocks(module: str, level: int) -> list[str]:
    """Returns a module's summary and an instruction for each of its public names."""
    names = public_names(module)
    if names is None:
        return [_instruction(module, show_root_heading=False, heading_level=level - 1)]
    blocks = [ast.get_docstring(_tree(module)) or ""]
    for name, path in sorted(names.items(), key=lambda item: item[0].lower()):
        if _file(path) is None:
            blocks.append(_instruction(path, heading=name, heading_level=level))
        else:
            other = next((page for page, modules in PAGES.items() if path in modules), None)
            link = f"[`{path}`]({other}.md)" if other else f"`{path}`"
            blocks.append(f"{'#' * level} {name}\n\nThe module {link}.")
    return blocks


def _instruction(path: str, **options: object) -> str:
    # JSON is YAML.
    return f"::: {path}\n    options: {json.dumps(options)}"


def _package(modules: tuple[str, ...]) -> str:
    """Returns the package that modules have in common."""
    parts = [module.split(".") for module in modules]
    common = [words[0] for words in zip(*parts, strict=False) if len(set(words)) == 1]
    return ".".join(common)


def _file(module: str) -> Path | None:
    """Returns the file of a module; None if there is none."""
    path = ROOT.joinpath(*module.split("."))
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return found[0] if found else None


def _tree(module: str) -> ast.Module:
    file = _file(module)
    assert file is not None, module
    return ast.parse(file.read_text())
