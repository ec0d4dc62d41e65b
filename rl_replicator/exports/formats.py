"""Writes a model to a folder that other programs can read, in one of several formats."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator.errors import UsageError, cannot_write
from rl_replicator.exports import onnx_graph, program, standalone
from rl_replicator.exports.model import ExportedModel
from rl_replicator.runs import atomic_file

CARD = "README.md"
_SIGNATURE = "serving_default"


def write(model: ExportedModel, kind: str, out: Path) -> None:
    """Writes a model and its card.

    Args:
      model: the model.
      kind: a key of `FORMATS`.
      out: the folder to create. It appears only once it is complete.

    Raises:
      UsageError: if `out` exists or cannot be written, or the model cannot be expressed in the
        format.
    """
    try:
        if out.exists():
            raise UsageError(
                f"--out: expected a new folder, got {out}, which exists; choose another"
            )
        with atomic_file.making_folder(out) as folder:
            FORMATS[kind](model, folder)
            (folder / CARD).write_text(model.card.markdown())
    except OSError as error:
        raise cannot_write(
            f"--out: cannot write to {out}: {error}; choose another folder", error
        ) from None


class _Saved(tf.Module):
    """The contents of a SavedModel."""

    def __init__(self, model: ExportedModel):
        super().__init__(name="model")
        self.call = tf.function(
            lambda **inputs: dict(model.function(**inputs)), autograph=False
        ).get_concrete_function(
            **{
                name: tf.TensorSpec(spec.shape, spec.dtype, name)
                for name, spec in model.inputs.items()
            }
        )
        self.weights = list(self.call.graph.variables)
        # The graph refers to its variables, but only to the handles of its lookup tables.
        kind = tf.saved_model.experimental.TrackableResource
        self.tables = [
            part
            for holder in model.tables_of
            for part in tf.train.TrackableView(holder).descendants()
            if isinstance(part, kind)
        ]


def _write_saved_model(model: ExportedModel, folder: Path) -> None:
    saved = _Saved(model)
    root = logging.getLogger()
    level = root.level
    try:
        tf.saved_model.save(saved, str(folder), signatures={_SIGNATURE: saved.call})
    finally:
        root.setLevel(level)  # `save` changes it.


def _write_tflite(model: ExportedModel, folder: Path) -> None:
    saved = folder / "saved_model"
    _write_saved_model(model, saved)
    try:
        converted = tf.lite.TFLiteConverter.from_saved_model(str(saved)).convert()
    except Exception as error:  # The converter has its own classes, whose messages fill pages.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"--format tflite: expected operations that TFLite supports, got: {lines[0]}; choose "
            "--format savedmodel"
        ) from error
    (folder / "model.tflite").write_bytes(converted)
    shutil.rmtree(saved)


def _write_onnx(model: ExportedModel, folder: Path) -> None:
    graph: Any = onnx_graph.build(program.translate(_Saved(model).call), model.card.json())
    (folder / "model.onnx").write_bytes(graph.SerializeToString())


def _write_numpy(model: ExportedModel, folder: Path) -> None:
    translated = program.translate(_Saved(model).call)
    # Names of operations may be invalid file names.
    keys = {name: f"constant_{i}" for i, name in enumerate(translated.constants)}
    described = {
        "inputs": translated.inputs,
        "outputs": translated.outputs,
        "operations": translated.operations,
        "constants": keys,
    }
    np.savez(
        folder / "model.npz",
        program=np.array(json.dumps(described)),
        card=np.array(model.card.json()),
        **{keys[name]: array for name, array in translated.constants.items()},
    )
    shutil.copyfile(standalone.__file__, folder / "model.py")


FORMATS: dict[str, Callable[[ExportedModel, Path], None]] = {
    "savedmodel": _write_saved_model,
    "tflite": _write_tflite,
    "onnx": _write_onnx,
    "numpy": _write_numpy,
}
