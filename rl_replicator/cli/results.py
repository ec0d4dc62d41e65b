"""The commands on what runs have learned: `eval`, `export`, `plot` and `compare`."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError, cannot_write, check_option


def evaluate(args: Sequence[str]) -> int:
    """Evaluates the newest checkpoint of a run; the options depend on what it trains."""
    command = "rl-replicator eval"
    if args and args[0] in ("-h", "--help"):
        print(f"usage: {command} RUN_DIR [options]")
        kinds: dict[type, list[str]] = {}
        for name in trainables.names():
            kinds.setdefault(trainables.load(name).evaluation_options_type, []).append(name)
        for kind, names in kinds.items():
            print(f"\nOf a run of {', '.join(names)}:\n", flush=True)
            with contextlib.suppress(SystemExit):
                options.parse(kind, f"{command} RUN_DIR", ["--help"])
        return 0
    if not args or args[0].startswith("-"):
        raise UsageError(
            f"expected RUN_DIR after '{command}', got {args[0] if args else 'nothing'}; write "
            f"'{command} RUN_DIR [options]'"
        )
    run_dir = Path(args[0])
    trainable = trainables.of_run(run_dir)
    kind = trainable.evaluation_options_type
    chosen: Any = options.parse(kind, f"{command} {args[0]}", args[1:])
    arguments = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen)}
    return trainable.evaluate(run_dir, **arguments) or 0


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write the model of a run for programs that do not use this project.

    For an agent, this is the policy without exploration, which maps the environment's observations
    to actions in the environment's own range.
    """

    run_dir: options.RunDir
    """Directory of the run."""
    out: Path
    """The folder to create."""
    format: Literal["savedmodel", "onnx", "tflite", "numpy"] = "savedmodel"
    """For TensorFlow, ONNX Runtime, TFLite's interpreter, or only NumPy."""
    best: bool = False
    """Use the checkpoint with the best evaluation during training, in place of the newest."""
    license: str | None = None
    """Licence named in the model card. Default: none."""
    data_dir: Path | None = None
    """Where the data of a learner lies now. Default: as in training."""


def export(args: Sequence[str]) -> int:
    """Exports the model of a run and prints the folder."""
    chosen: Any = options.parse(ExportOptions, "rl-replicator export", args)
    trainable: Any = trainables.of_run(chosen.run_dir)
    if not hasattr(trainable, "exported"):
        raise UsageError(
            f"expected a run whose model can be exported, got {chosen.run_dir}; its command has no "
            "method 'exported'"
        )
    which = "best" if chosen.best else "newest"
    print(
        f"exporting the {which} checkpoint of {chosen.run_dir} as {chosen.format}", file=sys.stderr
    )
    out = chosen.out.absolute()  # The run's environment may change the working directory.
    model = trainable.exported(chosen.run_dir, chosen.best, chosen.license, chosen.data_dir)
    from rl_replicator.exports import formats

    formats.write(model, chosen.format, out)
    print(f"wrote {chosen.out} as {chosen.format} ({model.card.title})")
    return 0


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Plot the evaluations of runs over their steps, with a panel for each task.

    Runs that differ only in their seed become one line, their mean, with a band from the lowest to
    the highest seed. A folder, such as runs or that of a suite or a sweep, includes all its runs.
    A run that cannot be read is left out.
    """

    run_dirs: options.RunDirs
    """Directories of runs, or folders of runs."""
    figure: str | None = None
    """The figure of the evaluations, such as top_1. Default: the score of the runs."""
    out: Path | None = None
    """The image, a PNG. Default: evaluation.png, in the directory of a single run, otherwise in the
    working directory."""

    def __post_init__(self) -> None:
        if not self.run_dirs:
            raise UsageError("expected at least one RUN_DIR, got none")
        is_png = self.out is None or self.out.suffix.lower() == ".png"
        check_option(is_png, "out", "a name that ends in .png", self.out)


def plot(args: Sequence[str]) -> int:
    """Draws the plot and prints its path."""
    chosen = options.parse(PlotOptions, "rl-replicator plot", args)
    # Imported after the options are parsed, so that mistakes are reported immediately.
    from rl_replicator.runs import evaluations, plots
    from rl_replicator.runs.run_directory import RunDirectory

    runs = evaluations.evaluated(chosen.run_dirs, chosen.figure)
    output = chosen.out
    if output is None:
        paths = evaluations.expanded(chosen.run_dirs)
        output = RunDirectory(paths[0]).plot if len(paths) == 1 else Path("evaluation.png")
    with _drawing(output):
        print(plots.plot(runs, output))
    return 0


@dataclasses.dataclass(frozen=True)
class CompareOptions(PlotOptions):
    """Compare the runs of several configs: curves, settings that differ, and which one is better.

    Runs that differ only in task and seed belong to one config. A folder, such as runs or that of a
    suite or a sweep, includes all its runs. A run that cannot be read is left out.
    """

    out: Path | None = Path("comparison.png")
    """The image of the curves, a PNG."""


def compare(args: Sequence[str]) -> int:
    """Prints the comparison and draws the curves."""
    chosen = options.parse(CompareOptions, "rl-replicator compare", args)
    from rl_replicator.runs import comparison, evaluations, plots

    runs = evaluations.evaluated(chosen.run_dirs, chosen.figure)
    configs = evaluations.configs(evaluations.curves(runs))
    pairs = comparison.pairs(configs)
    if not pairs:
        raise UsageError(
            "expected runs of at least two configs with a task in common, got "
            f"{len(configs)} without; 'rl-replicator plot' draws them"
        )
    output = chosen.out or Path("comparison.png")
    print(comparison.report(configs, pairs))
    with _drawing(output):
        plots.draw(configs, output)
    print(f"\n{output}")
    return 0


@contextlib.contextmanager
def _drawing(output: Path) -> Iterator[None]:
    """Turns an error in writing an image into one line."""
    try:
        yield
    except OSError as error:
        raise cannot_write(f"cannot write the plot to {output}: {error}", error) from error
