"""The table of learning results in the README, from the directories of finished runs.

    PYTHONPATH=. python bench/learning_table.py [RUN_DIR...] [--at STEPS ...]

Without RUN_DIR, all runs under `runs/`. One row for each run and each of `--at` (default: the end):
the evaluation at that many environment steps (or the last one before), learner steps and the run's
own clock at that moment.
"""

import argparse
from pathlib import Path

import numpy as np

from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory


def rows(run_dir: Path, marks: list[int]) -> list[str]:
    """Markdown rows of one run."""
    identity = RunDirectory(run_dir).config()["identity"]
    table = read_metrics(run_dir, "evaluator")
    steps = table["environment_steps"]
    lines = []
    for mark in marks or [int(steps[-1])]:
        i = int(np.searchsorted(steps, mark, side="right")) - 1
        clock = f"{int(table['wall_time'][i]) // 60}:{int(table['wall_time'][i]) % 60:02d}"
        lines.append(
            f"| {identity['env']} | {identity['seed']} | {steps[i]:,} | "
            f"{table['learner_steps'][i]:,.0f} | {table['episode_return'][i]:.0f} "
            f"({table['episodes'][i]:.0f} episodes) | {clock} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dirs", nargs="*", type=Path, default=sorted(Path("runs").glob("*/*")))
    parser.add_argument("--at", nargs="*", type=int, default=[])
    args = parser.parse_args()
    print("| task | seed | environment steps | learner steps | return | clock |")
    print("|---|---|---|---|---|---|")
    for run_dir in args.run_dirs:
        print("\n".join(rows(run_dir, args.at)))


if __name__ == "__main__":
    main()
