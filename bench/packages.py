"""Trains in environments of other people's packages, and makes docs/results/packages.md.

    python -m bench.packages [--only NAME ...]

Each package of bench/packages.toml is installed beside the project, into a virtual environment of
its own in build/packages, which sees the project's packages and replaces those that it must. There,
a run of 2,000 steps from state is trained, filmed and exported, and one from pixels trained and
exported. The results of other packages in bench/packages.json stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from bench.harness import ROOT
from rl_replicator.runs.metrics import read_metrics

PACKAGES = ROOT / "bench" / "packages.toml"
RESULT, PAGE = ROOT / "bench" / "packages.json", ROOT / "docs" / "results" / "packages.md"
FOLDER = ROOT / "build" / "packages"
DEADLINE = 5400.0  # Frames of several seconds, on a busy machine.
TRAIN = ["train", "d4pg", "--evaluation.every", "1000000", "--evaluation.last-episodes", "1"]
TRAIN += ["--evaluation.max-episode-steps", "100", "--steps", "2000"]
TRAIN += ["--agent.replay.min-size", "400", "--agent.replay.samples-per-insert"]
FORMS = {
    "state": ["32"],
    "pixels": ["8", "--pixels", "--no-video", "--agent.global-batch-size", "64"],
}
_BLOCK = re.compile(r"(<!-- packages -->\n).*?(<!-- end of packages -->)", re.S)


class FailedError(Exception):
    """A command has failed; the only argument is the line that says why."""


def run(words: Sequence[str]) -> str:
    """Runs a command with the project's folder as working directory, and returns what it prints.

    Raises:
      FailedError: if its exit status is not 0, or it takes too long.
    """
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        raise FailedError(f"not done after {DEADLINE:.0f} s") from None
    finally:  # Ctrl-C does not reach a session of its own, which may outlive its leader, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        print(output[-3000:])
        lines = output.strip().splitlines() or [f"exit status {process.returncode}"]
        errors = [line for line in lines if "error: " in line.lower()]
        raise FailedError((errors or lines)[-1])
    return output


def install(name: str, requirements: Sequence[str]) -> Path:
    """Makes the virtual environment of a package, unless it is there, and returns its Python."""
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "complete"
    if stamp.is_file() and stamp.read_text().split() == [*requirements]:
        return python
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    inner = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    ours = sysconfig.get_path("purelib")
    (inner / "project.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    own = [line for line in metadata.requires("rl-replicator") or [] if "extra ==" not in line]
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in own if "[" not in line))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    run([*pip, "setuptools<81"])  # Many packages import its pkg_resources.
    run([*pip, *requirements])
    stamp.write_text("\n".join(requirements))
    return python


def try_out(python: Path, row: Mapping[str, Any], form: str) -> str:
    """Trains, films and exports; returns what became of it, beginning with "yes" if all worked."""
    command = [str(python), "-m", "rl_replicator.cli.main"]
    task = ["--env", row["env"], *row.get("options", []), *row.get(form, [])]
    with tempfile.TemporaryDirectory() as folder:
        run_dir, exported = Path(folder) / "run", f"{folder}/exported"
        try:
            output = run([*command, *TRAIN, *FORMS[form], *task, "--run-dir", str(run_dir)])
            steps = read_metrics(run_dir, "evaluator")["learner_steps"][-1]
            run([*command, "export", str(run_dir), "--format", "numpy", "--out", exported])
        except FailedError as error:
            return str(error).removeprefix("rl-replicator: error: ")
        _, failure, reason = output.partition("no video was made: ")
        made = f"yes{', no film' if failure else ''}: {steps:.0f} learner steps"
        return f"{made}; {reason.splitlines()[0]}" if failure else made


def examine(row: Mapping[str, Any]) -> dict[str, str]:
    """Returns the result of a package by form, or why it was not installed."""
    try:
        python = install(row["name"], row["install"])
    except FailedError as error:
        return {"installation": str(error)}
    found = {form: try_out(python, row, form) for form in row.get("forms", FORMS)}
    return {**found, "replaced": ", ".join(_replaced(python))}


def _replaced(python: Path) -> Iterator[str]:
    """Yields the dependencies of ours of which the environment has another version."""
    lines = metadata.requires("rl-replicator") or []
    for name in sorted({Requirement(line).name.replace("-", "_") for line in lines}):
        for path in python.parents[1].glob(f"lib/*/site-packages/{name}-*.dist-info"):
            yield path.name.removesuffix(".dist-info").replace("-", " ")


def rewrite(text: str, results: Mapping[str, Mapping[str, str]]) -> str:
    """Returns a Markdown text with the table of packages in the place of the one that it has."""
    lines = ["| package | `--env` | state | pixels | needs |", "|---|---|---|---|---|"]
    for row in tomllib.loads(PACKAGES.read_text())["packages"]:
        if not (found := results.get(row["name"])):
            continue
        cells = [_cell(found[form]) if form in found else "" for form in FORMS]
        if "installation" in found:
            cells = ["no", "no"]
        notes = [*row.get("notes", []), *filter(None, [found.get("replaced")])]
        package = row["install"][0].replace("==", " ")
        cells = [package, f"`{row['env']}`", *cells, ", ".join(notes)]
        lines.append("| " + " | ".join(cells) + " |")
    return _BLOCK.sub(lambda block: block[1] + "\n".join(lines) + "\n" + block[2], text)


def _cell(result: str) -> str:
    """Returns "yes", "yes, no film", or "no": the reason is a note in the list of packages."""
    return result.partition(":")[0] if result.startswith("yes") else "no"


def main() -> None:
    """Tries the packages, and writes the results and the table."""
    rows = {row["name"]: row for row in tomllib.loads(PACKAGES.read_text())["packages"]}
    parser = argparse.ArgumentParser(prog="python -m bench.packages", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="*", choices=list(rows), default=list(rows))
    names = parser.parse_args().only
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ends what it has started.
    for name in names:
        found = examine(rows[name])
        print(name, found, flush=True)
        results = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
        results[name] = found
        RESULT.write_text(json.dumps(results, indent=2) + "\n")
        PAGE.write_text(rewrite(PAGE.read_text(), results))


if __name__ == "__main__":
    main()
