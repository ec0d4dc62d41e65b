"""A model to export: a function, its inputs, and a card that describes it."""

import contextlib
import dataclasses
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

_PACKAGES = ("rl-replicator", "tensorflow", "dm-sonnet", "numpy")


@dataclasses.dataclass(frozen=True)
class Card:
    """A model card: the description of a model, for people and for programs.

    Attributes:
      title: one line.
      facts: facts about the model, by name: task, steps, return, licence and so on.
      usage: how to use the model, as paragraphs.
      config: the settings that it was trained with, as plain data.
      packages: packages whose versions matter, in addition to those that matter for all models.
    """

    title: str
    facts: Mapping[str, str]
    usage: str
    config: Mapping[str, Any]
    packages: Sequence[str] = ()

    def markdown(self) -> str:
        """Returns the card as Markdown."""
        rows = [f"| {k} | {v} |" for k, v in {**self.facts, **self._versions()}.items()]
        settings = ["Settings:", "", "```json", json.dumps(self.config, indent=2), "```", ""]
        lines = [f"# {self.title}", "", "| | |", "|---|---|", *rows, "", self.usage, "", *settings]
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the card as JSON."""
        others = {"versions": self._versions(), "config": self.config}
        return json.dumps({"title": self.title, **self.facts, **others}, indent=1)

    def _versions(self) -> dict[str, str]:
        """Returns the versions of this project, of Python and of the packages that matter."""
        found = {"Python": platform.python_version()}
        for name in (*_PACKAGES, *self.packages):
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
        return found


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A function to export.

    Attributes:
      function: takes tensors by keyword, in the order of `inputs`, and returns tensors by name.
      inputs: specs by name; the first dimension of each, the batch, is None.
      card: the model card.
      tables_of: lookup tables that the function reads, or modules and Keras models that hold them.
        A SavedModel needs them.
    """

    function: "Callable[..., Mapping[str, tf.Tensor]]"
    inputs: "Mapping[str, tf.TensorSpec]"
    card: Card
    tables_of: "Sequence[tf.Module]" = ()
