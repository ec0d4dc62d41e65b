"""A run from its options to its end: directory, program, live line, plot and video."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import launchpad as lp
from agents.agent import Agent
from agents.nodes.counter import Counter
from agents.program import RunPlan, make_program
from agents.replay.checkpoint import replay_scratch
from agents.replay.memory_estimate import available_memory
from agents.runs.launching import launch, share_processors
from agents.runs.progress import ProgressLine, clock
from agents.runs.replicas import Replicas
from agents.task import Task
from environments.pixels import frame_rate
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory, runs

if TYPE_CHECKING:
    from agents.runs.command import AgentCommand
    from agents.runs.options import AgentOptions

_RUNS = Path("runs")


def train(command: "AgentCommand", options: "AgentOptions") -> int:
    """Trains an agent; returns the exit status. See `agents.runs.command.AgentCommand.train`."""
    share_processors()
    task = options.task
    agent = command.make_agent(options.agent, task.spec())
    replicas = Replicas.parse(options.replicas, options.launch, options.learner_gpus)
    # Batch, replicas and limiter must fit before all else.
    agent.make_tables(replicas.num_replicas)
    about = _announce(agent, task)

    identity = options.identity
    run = _choose_directory(command.name, identity, options)
    with run.opened(command.name, identity) as there:
        plan = RunPlan(
            task=task,
            seed=options.seed,
            total_steps=options.steps,
            num_actors=options.actors,
            num_caches=options.caches,
            replicas=replicas,
            evaluation=options.evaluation,
            checkpoint_seconds=options.checkpoint_seconds,
            run_dir=run.path.resolve(),
        )
        continues = there and _has_checkpoint(run)
        run.describe(command.name, identity, _plain(options))
        print(f"{'continuing' if continues else 'training'} in {run.path}", flush=True)
        print(*about, sep="\n", end="\n" if about else "", flush=True)
        return _run(agent, plan, options, run)


def _announce(agent: Agent, task: Task) -> list[str]:
    """What a run from pixels says of itself, once it is known that its replay fits.

    Raises:
      UsageError: if it does not.
    """
    if task.pixels is None:
        return []
    environment = task.make(seed=0)
    size = agent.replay_size(environment)
    environment.close()
    if size is None:
        return []
    size.check_fits(available_memory())
    return [frame_rate.line(task.name, task.pixels), f"replay: {size}"]


def _choose_directory(name: str, identity: dict, options: "AgentOptions") -> RunDirectory:
    if options.run_dir is not None:
        run = RunDirectory(options.run_dir)
        if options.resume:
            run.config()  # Raises where there is no run to go on with.
        return run
    wanted = json.loads(json.dumps({"trainable": name, **identity}))
    root = _RUNS / name
    if options.resume:
        for run in runs(root):
            if run.config()["identity"] == wanted:
                return run
        raise UsageError(
            f"--resume: expected a run of {options.env} with seed {options.seed} and this agent "
            f"under {root}, found none; leave --resume out, or name the run with --run-dir"
        )
    base = f"{options.env.replace(':', '-')}-seed{options.seed}"
    number = 1
    while (root / f"{base}-{number}").exists():
        number += 1
    return RunDirectory(root / f"{base}-{number}")


def _has_checkpoint(run: RunDirectory) -> bool:
    """Whether there is something to go on from.

    Raises:
      CheckpointError: it is corrupt.
    """
    checkpointer = Checkpointer(run.checkpoints)
    latest = checkpointer.latest()
    if latest is None:
        return False
    # All files are checked here, before anything has started; the nodes read them later.
    checkpointer.restore({name: _Unread() for name in latest.parts})
    return True


class _Unread:
    """A part that somebody else restores."""

    def save(self, folder: Path) -> None:
        raise NotImplementedError

    def restore(self, folder: Path) -> None:
        pass


def _run(agent: Agent, plan: RunPlan, options: "AgentOptions", run: RunDirectory) -> int:
    before = Checkpointer(run.checkpoints).latest()
    program, counter_handle = make_program(agent, plan)
    manager = launch(program, options.launch, options.address, plan.replicas.gpus)
    line = ProgressLine()
    try:
        counter: Counter = manager.resolve(counter_handle)
        while not manager.wait(timeout=1.0):
            try:
                progress = counter.progress()
            except (lp.CourierError, lp.ProgramStoppedError):
                continue  # It is starting, or it is stopping.
            line.show(progress)
    finally:
        line.close()
        shutil.rmtree(replay_scratch(plan.run_dir), ignore_errors=True)
    if manager.signal_number is not None:
        saved = Checkpointer(run.checkpoints).latest() != before
        done = "stopped and saved" if saved else "stopped; what came after the last save is lost"
        print(f"{done}; go on with: --run-dir {run.path}", flush=True)
        return 128 + manager.signal_number
    return _report(run)


def _report(run: RunDirectory) -> int:
    """The end of a complete run: its last evaluation, its plot and its video."""
    last = {name: column[-1] for name, column in read_metrics(run.path, "evaluator").items()}
    print(
        f"evaluation return {last['episode_return']:.1f} over {last['episodes']:.0f} episodes "
        f"(min {last['episode_return_min']:.1f}, max {last['episode_return_max']:.1f}) after "
        f"{last['environment_steps']:,.0f} environment steps, {last['learner_steps']:,.0f} learner "
        f"steps, {clock(last['run_seconds'])}",
        flush=True,
    )
    # In processes of their own: nothing of this one's TensorFlow or OpenGL state matters there,
    # and a machine that cannot render still has its trained agent.
    for subcommand in ("plot", "video"):
        subprocess.run([sys.executable, "-m", "rl_replicator.cli.main", subcommand, str(run.path)])
    return 0


def _plain(options: "AgentOptions") -> dict:
    plain = dataclasses.asdict(options)
    plain["run_dir"] = None if options.run_dir is None else str(options.run_dir)
    return plain
