"""The whole loop of TD3 and SAC beside SBX, the agents of Stable-Baselines3 in JAX.

    python -m bench.sbx

Both take a learner step for each step of one environment, gym:HalfCheetah-v5, with batches of 256
and two layers of 256 units in each network. A rate is that from environment step 2,000 to 6,000, so
that start-up and compilation are not counted. SBX is installed into build/sbx, with PyTorch (6 GB).
"""

import functools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench import harness, processes
from rl_replicator.runs.metrics import read_metrics

FIRST, LAST = 2000, 6000
ENVIRONMENT = "HalfCheetah-v5"
RATE = harness.Unit("environment steps/s")
FOLDER = harness.ROOT / "build" / "sbx"
REQUIREMENTS = ["sbx-rl==0.28.0", "gymnasium==1.4.0", "mujoco==3.17.0", "imageio"]
DEADLINE = 900.0
COMMAND = ["--env", f"gym:{ENVIRONMENT}", "--steps", str(10 * LAST), "--no-video"]
COMMAND += ["--agent.global-batch-size", "256", "--agent.replay.samples-per-insert", "256"]
COMMAND += ["--agent.replay.min-size", "1000", "--agent.n-step", "1"]
COMMAND += ["--evaluation.every", str(10 * LAST)]
# SAC draws actions from its policy from the first step on, as SBX does after 1,000 random ones.
OWN = {"td3": ["--agent.exploration-random-steps", "1000"], "sac": []}
PEER = f"""
import sys, time
import gymnasium, sbx
from stable_baselines3.common.callbacks import BaseCallback

class Clock(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == {FIRST}:
            self.first = time.perf_counter()
        return True

clock, environment = Clock(), gymnasium.make("{ENVIRONMENT}")
layers = {{"net_arch": [256, 256]}}
agent = getattr(sbx, sys.argv[1])(
    "MlpPolicy", environment, batch_size=256, learning_starts=1000, policy_kwargs=layers
)
agent.learn({LAST}, callback=clock)
print("rate", ({LAST} - {FIRST}) / (time.perf_counter() - clock.first))
"""


def install() -> None:
    """Makes the environment of SBX, unless it is there."""
    stamp = FOLDER / "complete"
    if not stamp.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(FOLDER)], check=True)
        pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", *REQUIREMENTS]
        subprocess.run(pip, check=True)
        stamp.touch()


def ours(agent: str) -> Mapping[harness.Unit, float]:
    """Trains an agent of this project."""
    with processes.running(["train", agent, *COMMAND, *OWN[agent]]) as program:
        program.wait(lambda: episodes(program.run_dir)[-1][0] >= LAST, DEADLINE)
        (first, start), *_, (last, end) = (
            row for row in episodes(program.run_dir) if FIRST <= row[0] <= LAST
        )
    return {RATE: (last - first) / (end - start)}


def episodes(run_dir: Path) -> list[tuple[float, float]]:
    """Returns (environment steps, seconds) at the end of each episode, which takes 1,000 steps."""
    if not (run_dir / "metrics" / "actor.csv").is_file():
        return [(0.0, 0.0)]
    table = read_metrics(run_dir, "actor")
    return [*zip(table["environment_steps"], table["wall_time"], strict=True)]


def theirs(agent: str) -> Mapping[harness.Unit, float]:
    """Trains an agent of SBX."""
    command = [str(FOLDER / "bin" / "python"), "-c", PEER, agent.upper()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=DEADLINE, check=True)
    return {RATE: float(done.stdout.split()[-1])}


def main() -> None:
    """Measures all sides."""
    options = harness.parser("sbx", __doc__).parse_args()
    report = harness.Report("sbx", options)
    install()
    sides: dict[str, harness.Side] = {}
    for agent in OWN:
        sides[agent.upper()] = functools.partial(ours, agent)
        sides[f"{agent.upper()}, SBX"] = functools.partial(theirs, agent)
    peers = {name: f"{name}, SBX" for name in ("TD3", "SAC")}
    report.add(harness.measure(sides, options.rounds, warm_up=0), peers)
    report.write()


if __name__ == "__main__":
    main()
