"""Compares the predictions of `rl-replicator plan` with short runs on this machine.

    python -m bench.plan

Prints the comparisons, and appends them to the runs in bench/results/plan.json. The parts are
measured first, and again after every four runs; each run is compared with the prediction from the
newest measurement. A run's speed is read from its `metrics/learner.csv`, from one of its first
learner reports on. If the machine does other work, the model gets only the processors that this
work left free during the run, according to /proc/stat; their number is printed.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from agents.capacity.command import deploy, samples_ahead
from agents.capacity.hardware import Hardware
from agents.capacity.parts import Parts
from bench import harness, processes
from rl_replicator.cli import options, trainables
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
SIMULATED_SECONDS = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Processors:
    """Measures the processor use of all processes except one and its descendants."""

    def __init__(self, root: int):
        self._root = root
        self._others: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def free(self, start: float, end: float) -> float:
        """Stops measuring; returns the mean number of free processors between two times."""
        self._over.set()
        self._thread.join()
        rates = [rate for moment, rate in self._others if start <= moment <= end]
        return (os.cpu_count() or 1) - statistics.mean(rates)

    def _watch(self) -> None:
        own, busy, moment = self._read()
        while not self._over.wait(1.0):
            own_now, busy_now, now = self._read()
            others = (busy_now - busy) - max(0.0, own_now - own)
            self._others.append((time.time(), max(0.0, others / (now - moment))))
            own, busy, moment = own_now, busy_now, now

    def _read(self) -> tuple[float, float, float]:
        parents, seconds = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # The process has ended.
                continue
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        family, members = set(), {self._root}
        while members:
            family |= members
            members = {pid for pid, parent in parents.items() if parent in members}
        own = sum(seconds.get(pid, 0.0) for pid in family)
        user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().split()[1:9])
        return own, (user + nice + system + sum(more)) / _TICKS, time.monotonic()


def measure_parts(folder: Path, seconds: float) -> Parts:
    """Measures the parts in a separate process."""
    path = folder / f"{time.time()}.json"
    command = [sys.executable, "-m", "rl_replicator.cli.main", "plan", "d4pg", *TASK]
    command += ["--parts", str(path), "--measure-seconds", str(seconds)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Parts.load(path)


def run(words: list[str], folder: Path, seconds: float) -> tuple[float, float, float]:
    """Runs a program; returns environment steps/s, learner steps/s, and free processors."""
    run_dir = folder / f"run-{time.time()}"
    command = [sys.executable, "-m", "rl_replicator.cli.main", "train", "d4pg", *COMMON, *words]
    command += ["--steps", str(STEPS), "--run-dir", str(run_dir)]
    with open(folder / "log.txt", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        free = watched(process, run_dir, seconds)
    finally:
        processes.stop(process)
    # Some nodes are still starting up during the first rows.
    rows = {name: column[2:] for name, column in read_metrics(run_dir, "learner").items()}
    clock = rows["wall_time"] - rows["wall_time"][0]
    last = int((clock <= seconds).sum()) - 1
    rates = [
        float((rows[name][last] - rows[name][0]) / clock[last])
        for name in ("environment_steps", "learner_steps")
    ]
    return rates[0], rates[1], free


def watched(process: subprocess.Popen, run_dir: Path, seconds: float) -> float:
    """Waits until a run has trained for `seconds`; returns the processors free meanwhile."""
    watch = Processors(process.pid)
    begun = None
    deadline = time.monotonic() + 10 * seconds + 200
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
        table = read_metrics(run_dir, "learner") if (run_dir / "metrics").exists() else {}
        if begun is None and len(table.get("learner_steps", ())) >= 3:
            begun = time.time()
        if begun is not None and time.time() - begun >= seconds:
            break
    return watch.free(begun or 0.0, time.time())


def predict(parts: Parts, words: list[str], cores: float) -> tuple[Any, Any]:
    """Returns the bound on a run's speed, and its simulation."""
    from agents.capacity import model, simulation

    trainable: Any = trainables.load("d4pg")
    settings = options.parse(trainable.options_type([]), "bench", [*COMMON, *words])
    hardware = Hardware(cores=cores)
    deployment = deploy(settings, hardware)
    ahead = samples_ahead(settings.agent, deployment)
    return (
        model.predict(parts, deployment, hardware),
        simulation.simulate(parts, deployment, hardware, ahead, SIMULATED_SECONDS),
    )


def main() -> None:
    """Prints the figures and appends the rows."""
    parser = harness.parser("plan", __doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--measure-seconds", type=float, default=30.0)
    parser.add_argument("--cases", nargs="*", default=[""], help="parts of the cases' names")
    chosen = parser.parse_args()
    cases = {
        name: words for name, words in CASES.items() if any(part in name for part in chosen.cases)
    }
    about = harness.about("plan")
    document: dict[str, Any] = {"about": about, "rows": [], "runs": []}
    if chosen.output.is_file():
        document["runs"] = json.loads(chosen.output.read_text())["runs"]
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, words) in enumerate(cases.items()):
            if index % RUNS_PER_MEASUREMENT == 0:
                parts = measure_parts(Path(folder), chosen.measure_seconds)
                print(dataclasses.asdict(parts), flush=True)
            environment, learner, free = run(words, Path(folder), chosen.seconds)
            predicted, simulated = predict(parts, words, free)
            # The limiter lets either side run ahead for some seconds.
            actions = (environment + learner / predicted.deployment.steps_per_action) / 2
            row = {
                "case": name,
                "free_processors": round(free, 2),
                "environment_steps": round(environment, 1),
                "learner_steps": round(learner, 2),
                "predicted_environment_steps": round(predicted.environment_steps, 1),
                "predicted_learner_steps": round(predicted.learner_steps, 2),
                "error": round(predicted.actions / actions - 1, 3),
                "simulated_environment_steps": round(simulated.actions, 1),
                "simulated_error": round(simulated.actions / actions - 1, 3),
                "bottleneck": predicted.bottleneck.name,
                "machine": parts.machine,
            }
            document["runs"].append({**row, **about})
            chosen.output.write_text(json.dumps(document, indent=1) + "\n")
            print(
                f"| {name} | {free:.2f} | {environment:,.0f} | {predicted.environment_steps:,.0f} "
                f"| {learner:,.1f} | {predicted.learner_steps:,.1f} | {row['error']:+.0%} "
                f"| {simulated.actions:,.0f} | {row['simulated_error']:+.0%} "
                f"| {predicted.bottleneck.name} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
