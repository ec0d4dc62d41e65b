"""Compares the predictions of `rl-replicator plan` with short runs on this machine.

    python -m bench.plan

The parts are measured first, and again after every four runs; each run is compared with the
prediction from the newest measurement. If the machine does other work, the model gets only the
processors that this work left free during the run. Appends to the runs in bench/results/plan.json.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from agents.plan.bound import Hardware, deploy
from agents.plan.parts import Parts
from bench import harness, processes
from rl_replicator.cli import main as command_line
from rl_replicator.cli import trainables
from rl_replicator.runs.metrics import read_metrics

TASK = ["--env", "cheetah:run"]
# One learner step per environment step, and one per 64: the bottleneck is the learner and the
# actors, respectively.
OFTEN = ["--agent.global-batch-size", "256"]
SELDOM = [*OFTEN, "--agent.replay.samples-per-insert", "4", "--agent.replay.min-size", "8000"]
CASES = {
    "learner-bound, 1 actor, threads": OFTEN,
    "learner-bound, 4 actors, threads": [*OFTEN, "--actors", "4"],
    "learner-bound, 2 replicas, threads": [*OFTEN, "--replicas", "2"],
    "learner-bound, 2 actors, processes": [*OFTEN, "--actors", "2", "--launch", "processes"],
    "learner-bound, 2 actors, 2 shards, processes": [
        *(*OFTEN, "--actors", "2", "--replay-shards", "2", "--launch", "processes")
    ],
    "learner-bound, 2 learner processes": [
        *(*OFTEN, "--replicas", "multi_worker:2", "--launch", "processes")
    ],
    "actor-bound, 1 actor, threads": SELDOM,
    "actor-bound, 2 actors, threads": [*SELDOM, "--actors", "2"],
    "actor-bound, 4 actors, threads": [*SELDOM, "--actors", "4"],
    "actor-bound, 1 actor of 16, threads": [*SELDOM, "--envs-per-actor", "16"],
    "actor-bound, 1 actor, processes": [*SELDOM, "--launch", "processes"],
    "actor-bound, 2 actors, processes": [*SELDOM, "--actors", "2", "--launch", "processes"],
    "actor-bound, 4 actors, processes": [*SELDOM, "--actors", "4", "--launch", "processes"],
    "actor-bound, 2 actors, 2 shards, processes": [
        *(*SELDOM, "--actors", "2", "--replay-shards", "2", "--launch", "processes")
    ],
}
COMMON = [*TASK, "--no-video", "--evaluation.every", "100000000", "--checkpoint-seconds", "1000"]
STEPS = 10_000_000  # More than a run takes before it is stopped.
RUNS_PER_MEASUREMENT = 4
DEADLINE = 300.0


def run(words: list[str], seconds: float) -> tuple[float, float, float]:
    """Runs a program; returns environment steps/s, learner steps/s, and free processors."""
    train = ["train", "d4pg", *COMMON, "--steps", str(STEPS), *words]
    with processes.running(train) as program:
        # Some nodes are still starting up during the first rows.
        program.wait(lambda: len(learner(program.run_dir).get("learner_steps", ())) >= 3, DEADLINE)
        before, busy = learner(program.run_dir), others(program.process)
        started = time.monotonic()
        time.sleep(seconds)
        after, busier = learner(program.run_dir), others(program.process)
        elapsed = time.monotonic() - started

    def grown(name: str) -> float:
        return float(after[name][-1] - before[name][-1])

    steps, learner_steps = grown("environment_steps"), grown("learner_steps")
    free = (os.cpu_count() or 1) - max(0.0, busier - busy) / elapsed
    return steps / grown("wall_time"), learner_steps / grown("wall_time"), free


def learner(run_dir: Path) -> dict[str, Any]:
    """Returns the learner's metrics so far."""
    return read_metrics(run_dir, "learner") if (run_dir / "metrics").exists() else {}


def others(process: psutil.Process) -> float:
    """Returns the processor seconds of all processes except one and its descendants."""
    times = psutil.cpu_times()
    own = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    busy = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
    return busy - sum(each.user + each.system for each in own)


def predict(parts: Path, words: list[str], cores: float) -> Any:
    """Returns the bound on a run's speed."""
    from agents.cli.plan import measured_settings
    from agents.plan import bound

    trainable: Any = trainables.load("d4pg")
    settings = trainable.parse([*COMMON, *words], {})
    hardware = Hardware(cores=cores)
    known = Parts.load(parts, measured_settings("d4pg", settings))
    return bound.predict(known, deploy(settings, hardware), hardware)


def main() -> None:
    """Prints the figures and appends the rows."""
    parser = harness.parser("plan", __doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--measure-seconds", default="30")
    parser.add_argument("--cases", nargs="*", default=[""], help="parts of the cases' names")
    chosen = parser.parse_args()
    about = harness.about("plan")
    document: dict[str, Any] = {"about": about, "rows": [], "runs": []}
    if chosen.out.is_file():
        document["runs"] = json.loads(chosen.out.read_text())["runs"]
    cases = [name for name in CASES if any(part in name for part in chosen.cases)]
    with tempfile.TemporaryDirectory() as folder:
        for index, name in enumerate(cases):
            parts = Path(folder, f"{index // RUNS_PER_MEASUREMENT}.json")
            if not parts.exists():
                words = ["--parts", str(parts), "--measure-seconds", chosen.measure_seconds]
                assert command_line.main(["plan", "d4pg", *TASK, *OFTEN, *words]) in (0, None)
            environment, steps, free = run(CASES[name], chosen.seconds)
            predicted = predict(parts, CASES[name], free)
            # The limiter lets either side run ahead for some seconds.
            actions = (environment + steps / predicted.run.steps_per_action) / 2
            row = {
                "case": name,
                "free_processors": round(free, 2),
                "environment_steps": round(environment, 1),
                "learner_steps": round(steps, 2),
                "predicted_environment_steps": round(predicted.environment_steps, 1),
                "predicted_learner_steps": round(predicted.learner_steps, 2),
                "error": round(predicted.actions / actions - 1, 3),
                "bottleneck": predicted.resources[0].name,
            }
            document["runs"].append({**row, **about})
            chosen.out.write_text(json.dumps(document, indent=1) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
