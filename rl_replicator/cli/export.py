"""`rl-replicator export RUN_DIR --format FORMAT --out PATH`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError

# Options that take no value.
_FLAGS = ("--best", "--no-best")


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write the model of a run for programs that do not use this project.

    For an agent, this is the policy without exploration, which maps the environment's observations
    to actions in the environment's own range.
    """

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
    """Directory of the run."""
    out: Path
    """The folder to create."""
    format: Literal["savedmodel", "onnx", "tflite", "numpy"] = "savedmodel"
    """For TensorFlow, ONNX Runtime, TFLite's interpreter, or only NumPy."""
    best: bool = False
    """Use the checkpoint with the best evaluation during training, in place of the newest."""
    license: str | None = None
    """Licence named in the model card. Default: none."""


def run(args: Sequence[str]) -> int:
    """Exports the model of a run and prints the folder.

    Args:
      args: the words after `export`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, the run has no checkpoint, or its model cannot be exported.
    """
    chosen: Any = options.parse(_options_type(args), "rl-replicator export", args)
    trainable: Any = trainables.of_run(chosen.run_dir)
    if not hasattr(trainable, "exported"):
        raise UsageError(
            f"expected a run whose model can be exported, got {chosen.run_dir}; its command has no "
            "method 'exported'"
        )
    own = {field.name for field in dataclasses.fields(ExportOptions)}
    names = [field.name for field in dataclasses.fields(chosen) if field.name not in own]
    places = {name: getattr(chosen, name) for name in names}
    model = trainable.exported(chosen.run_dir, chosen.best, chosen.license, **places)
    from rl_replicator.exports import formats

    formats.write(model, chosen.format, chosen.out)
    print(f"{chosen.format} {chosen.out} ({model.card.title})")
    return 0


def _options_type(args: Sequence[str]) -> type:
    """Returns the options class; for a learner's run, with options for where its data is now."""
    run_dir = _run_dir(args)
    if run_dir is None or not (run_dir / "config.json").exists():
        return ExportOptions
    trainable: Any = trainables.of_run(run_dir)
    if not hasattr(trainable, "with_places"):
        return ExportOptions
    return trainable.with_places(ExportOptions)


def _run_dir(args: Sequence[str]) -> Path | None:
    """Returns the first word that is neither an option nor its value, which may be a path, too."""
    for before, word in zip(["", *args], args, strict=False):
        is_value = before.startswith("--") and "=" not in before and before not in _FLAGS
        if not word.startswith("-") and not is_value:
            return Path(word)
    return None
