"""A run from its options to its end: directory, program, progress line, plot and video."""

import contextlib
import dataclasses
import logging
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from acme import specs

import launchpad as lp
from agents import config
from agents.agent import Agent
from agents.config import one_by_one
from agents.nodes.counter import Counter
from agents.nodes.evaluation_figures import counted
from agents.nodes.program_folder import program_folder
from agents.nodes.run_plan import Replicas, RunPlan
from agents.nodes.saver import holds_last_step
from agents.policies.policy import AgentSource
from agents.program import make_deterministic_program, make_program
from agents.replay.checkpoint import part_name, replay_scratch
from agents.replay.config import ReplayConfig
from agents.replay.memory_estimate import available_memory
from agents.runs import goodput
from agents.runs.advice import advise
from agents.runs.bottleneck import explain
from agents.runs.films import Films, film_at_the_end
from agents.runs.launching import check_actors, launch, share_processors
from agents.runs.options import AgentOptions, PixelAgentOptions
from agents.runs.prefilling import Prefilling
from agents.runs.progress import AgentProgressLine
from environments import PixelConfig, frame_rate
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import UsageError, check_option
from rl_replicator.processes.ports import allowing_open_ports
from rl_replicator.runs import events, plots, trackers
from rl_replicator.runs.listener import NewRows, RunListener
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.progress_line import clock
from rl_replicator.runs.run_directory import AUTO, RunDirectory, adopted, choose, folder_name
from rl_replicator.runs.statistics import number

_LOG = logging.getLogger("agents")
_RUNS = Path("runs")
# 60 actions of most environments take less.
_PATIENCE_SECS = 10.0


def train(
    source: AgentSource,
    options: AgentOptions,
    environment_spec: specs.EnvironmentSpec,
    listener: RunListener,
) -> int:
    """Trains an agent.

    Args:
      source: makes the agent.
      options: options of the run.
      environment_spec: the spec of the environment that the options name.
      listener: is notified of the run and its evaluations.

    Returns:
      Exit status: 0 if the run is complete; 128 plus the number of the signal that ended it, or
      plus that of SIGTERM if the program whose node calls this ended it.

    Raises:
      UsageError: bad input; no existing run was touched.
    """
    trackers.check(options.track)
    share_processors()
    if options.deterministic:  # A local replay stores single transitions.
        options = dataclasses.replace(options, agent=one_by_one(options.agent))
    root = _RUNS / folder_name(source.name)  # `module:command` becomes "module-command".
    base = f"{folder_name(options.env)}-seed{options.seed}"
    with (
        allowing_open_ports(options.open_ports),
        choose(root, base, source.name, options.identity, options.run_dir, options.resume) as run,
    ):
        return _train_in(run, source, options, environment_spec, listener)


def _train_in(
    run: RunDirectory,
    source: AgentSource,
    options: AgentOptions,
    environment_spec: specs.EnvironmentSpec,
    listener: RunListener,
) -> int:
    asked = options
    options = resolved(options, run)
    check_actors(options.actors, options.envs_per_actor, options.launch, options.address)
    task = options.task
    agent = source.make_agent(options.agent, environment_spec)
    replicas = Replicas.parse(options.replicas, options.launch, options.learner_gpus)
    if options.address is None:
        replicas.check_gpus()
    # Raises if batch, replicas, shards and rate limiter do not fit each other.
    agent.make_tables(replicas.num_replicas, options.replay_shards)
    about = _announce(agent, options)
    prefilling = Prefilling(options, run)

    identity = options.identity
    with run.opened(source.name, identity) as there:
        listener.started(run)
        # Before any node starts: the nodes restore different parts of one checkpoint.
        continues = there and Checkpointer(run.checkpoints).set_aside_damaged() is not None
        if continues and _is_finished(run, options.steps, options.actors * task.action_repeat):
            print(
                f"finished: all {options.steps:,} environment steps of the run in {run.path} are "
                "done; a larger --steps continues it"
            )
            if not events.is_finished(events.read(run.path)):  # Killed before its film.
                Films(run, every=None).close()
                _remove_scratch(run)
                prefilling.close()
                _finish(run, options)
            return 0
        _warn_if_too_short(options)
        plan = RunPlan(
            task=task,
            seed=options.seed,
            total_steps=options.steps,
            num_actors=options.actors,
            envs_per_actor=options.envs_per_actor,
            env_engine=options.env_engine,
            num_caches=options.caches,
            num_replay_shards=options.replay_shards,
            replicas=replicas,
            env_timeout=options.env_timeout,
            evaluation=options.evaluation,
            checkpoint_seconds=options.checkpoint_seconds,
            keep_checkpoints=options.keep_checkpoints,
            profile_steps=options.profile_steps,
            run_dir=run.path.resolve(),
        )
        # The options as requested: in another run that begins with them (`--config`), "auto" is
        # resolved for its own task and machine. What this run has chosen is in its identity.
        run.describe(source.name, identity, asked.plain(), options.score.plain())
        print(f"{'continuing' if continues else 'training'} in {run.path}", flush=True)
        print(*about, sep="\n", end="\n" if about else "", flush=True)
        how = events.CONTINUED if continues else events.STARTED
        events.record(run.path, events.RUN, how, f"--steps {options.steps:,}")
        if not continues:
            prefilling.fill(agent, replicas.num_replicas)
        try:
            return _run(agent, plan, options, run, listener)
        finally:
            prefilling.close()


def resolved(options: AgentOptions, run: RunDirectory) -> AgentOptions:
    """Returns the options of a run with nothing left to "auto".

    A run that is continued keeps what it began with. The rest is determined by the task and by this
    machine.

    Args:
      options: the options as they were asked for.
      run: the run, which need not have begun.
    """
    stored: Mapping[str, Any] = {}
    if run.exists:
        stored = run.config()["identity"]
    changes: dict[str, Any] = {}
    if isinstance(options, PixelAgentOptions):
        frame = adopted(options.frame, stored.get("pixels", {}))
        changes["frame"] = _with_renderer(options, frame)
    repeat = options.task.action_repeat
    changes["agent"] = config.resolved(options.agent, stored.get("agent", {}), repeat)
    return dataclasses.replace(options, **changes)


def _with_renderer(options: PixelAgentOptions, frame: PixelConfig) -> PixelConfig:
    """Returns the frame with the renderer that suits this machine, unless it names one."""
    if frame.render != AUTO:
        return frame
    environment = options.task.make(seed=0)
    mode = environment.render_mode
    environment.close()
    return frame if mode == "own" else dataclasses.replace(frame, render=mode)


def _warn_if_too_short(options: AgentOptions) -> None:
    """Warns of a run that ends before its learner starts."""
    replay = getattr(options.agent, "replay", None)
    if not isinstance(replay, ReplayConfig) or options.prefill is not None:
        return
    actions = options.task.agent_steps(options.steps)
    if actions <= replay.min_size:
        _LOG.warning(
            "the learner starts after %s transitions (--agent.replay.min-size), and --steps %s are "
            "%s: this run trains nothing; raise --steps, or lower the former",
            *(f"{count:,}" for count in (replay.min_size, options.steps, actions)),
        )


def _announce(agent: Agent, options: AgentOptions) -> list[str]:
    """Returns what a run from pixels announces: frame rate and size of the replay.

    Raises:
      UsageError: if a replay of frames does not fit into the memory of this machine.
    """
    task = options.task
    # The dataset of a run that is continued may be gone.
    inserts = task.agent_steps(options.steps) if options.prefill is None else sys.maxsize
    with _told_if_slow(task.name):
        size = agent.estimate_memory(lambda: task.make(seed=0), inserts)
    if size is None:
        return []
    excess = size.excess(available_memory()) if options.address is None else ""
    if task.pixels is None:
        if excess:  # Compressed, the rows may fit.
            _LOG.warning("%s", excess)
        return []
    if excess:
        raise UsageError(f"{excess}, or the size of --frame")
    rate = frame_rate.line(task.name, task.pixels, task.wrap, task.time_limit)
    return [rate, f"replay: {size}"]


@contextlib.contextmanager
def _told_if_slow(name: str) -> Iterator[None]:
    """Warns if episodes are played for long before the run starts.

    They are played in this thread, because some environments only work in a main thread. So only
    the user can end a call that does not return.
    """
    timer = threading.Timer(
        _PATIENCE_SECS,
        _LOG.warning,
        (
            "%s is still being played to estimate the memory of the replay, after %.0f s; if one "
            "of its calls hangs, end this with Ctrl-C",
            name,
            _PATIENCE_SECS,
        ),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _is_finished(run: RunDirectory, steps: int, excess: int) -> bool:
    """Whether a run with a checkpoint has taken `steps` steps and was evaluated after them.

    Args:
      run: the run.
      steps: environment steps that were asked for.
      excess: by how many steps the last, repeated actions of its actors may exceed them.

    Raises:
      ConfigError: if it has taken more.
    """
    progress: dict[str, Any] = {}
    Checkpointer(run.checkpoints).restore({"progress": JsonPart(dict, progress.update)})
    done = progress["environment_steps"]
    # More actors may have taken them, whose last actions exceeded them by more.
    target = run.config()["options"].get("steps", steps)
    if done >= steps and _evaluated_at(run) == steps and target <= steps:
        return True
    check_option(
        done < steps + excess or target == steps,
        "steps",
        f"at least {done:,}, which the run in {run.path} has taken",
        f"{steps:,}",
    )
    return False


def _evaluated_at(run: RunDirectory) -> float | None:
    """Returns the environment steps of a run at its newest evaluation; None before the first."""
    steps = read_metrics(run.path, "evaluator").get("environment_steps", np.zeros(0))
    return float(steps[-1]) if len(steps) else None


def _run(
    agent: Agent,
    plan: RunPlan,
    options: AgentOptions,
    run: RunDirectory,
    listener: RunListener,
) -> int:
    evaluations, times = NewRows(run, "evaluator"), NewRows(run, "time")
    make = make_deterministic_program if options.deterministic else make_program
    described = make(agent, plan)
    # Left by a killed program: the whole run continues from its newest checkpoint.
    shutil.rmtree(program_folder(plan.run_dir), ignore_errors=True)
    line = AgentProgressLine()
    films = Films(run, options.video_every)
    noted, trained_until = 0, 0.0
    # From here on, an error has to stop the program: otherwise the script would wait for its end.
    manager = launch(described.program, options.launch, options.address, plan.replicas.gpus)
    try:
        try:
            with _failures_recorded(run):
                counter: Counter = manager.resolve(described.counter)
                while not manager.wait(timeout=1.0):
                    try:
                        progress = counter.progress()
                    except (lp.CourierError, lp.ProgramStoppedError):
                        continue  # It is starting, or it is stopping.
                    noted = _note_restarts(run, manager, noted)
                    if not progress.learner_done:
                        trained_until = progress.wall_time
                    line.show(progress)
                    films.tick(progress.environment_steps)
                    _tell(listener, evaluations)
        except BaseException:
            if not manager.is_done:  # The listener has raised: the run ends and saves.
                manager.stop()
                manager.wait(raise_error=False)
            raise
        finally:
            noted = _note_restarts(run, manager, noted)
            line.close()
            films.close()
            saved = holds_last_step(run.path)
            _remove_scratch(run)
        with _failures_recorded(run):
            _tell(listener, evaluations)
    except Exception:
        trackers.fail(run)
        raise
    # A run may stop without a signal, if it was launched by a node of a program that stops.
    is_complete = manager.signal_number is None and _evaluated_at(run) == options.steps
    stopped_at = None if is_complete else trained_until
    if noted and (told := goodput.line(run.path, stopped_at)):
        print(told, flush=True)
    if not is_complete:
        done = "stopped and saved" if saved else "stopped; everything after the last save is lost"
        command = f"rl-replicator train --run-dir {shlex.quote(str(run.path))}"
        print(f"{done}; continue with: {command}", flush=True)
        signum = manager.signal_number
        name = "" if signum is None else signal.Signals(signum).name
        events.record(run.path, events.RUN, events.STOPPED, name)
        return 128 + (signum or signal.SIGTERM)
    # The newest times may be of an earlier start, perhaps with other options.
    explained = explain(run.path, options.plain()) if times.read() else []
    _finish(run, options, explained)
    return 0


def _remove_scratch(run: RunDirectory) -> None:
    """Removes the folders that only a running program needs."""
    for folder in (replay_scratch(run.path), program_folder(run.path)):
        shutil.rmtree(folder, ignore_errors=True)


def _finish(run: RunDirectory, options: AgentOptions, explained: Sequence[str] = ()) -> None:
    """Prints and writes the results of a run, and records its end.

    Args:
      run: the run, which has taken its last step and evaluated it.
      options: its options.
      explained: how its time was spent.
    """
    _report(run, options)
    print(*explained, sep="\n", end="\n" if explained else "", flush=True)
    _plot(run)
    if options.video:
        film_at_the_end(run)
    trackers.add_files(run, without=part_name(0))  # A replay may have gigabytes.
    events.record(run.path, events.RUN, events.FINISHED)


@contextlib.contextmanager
def _failures_recorded(run: RunDirectory) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        events.record(run.path, events.RUN, events.FAILED, f"{type(error).__name__}: {error}")
        raise


def _plot(run: RunDirectory) -> None:
    """Plots the evaluations. If that fails, it only warns, because the run is complete."""
    try:
        print(plots.plot([plots.read(run.path)], run.plot), flush=True)
    except (UsageError, OSError) as error:
        _LOG.warning("no plot was drawn: %s", error)


def _note_restarts(run: RunDirectory, manager: lp.ProgramManager, noted: int) -> int:
    """Records the restarts of nodes beyond the first `noted`; returns how many there are now."""
    restarts = manager.restarts
    for restart in restarts[noted:]:
        events.record(run.path, restart.node, events.RESTARTED, restart.reason)
    return len(restarts)


def _tell(listener: RunListener, evaluations: NewRows) -> None:
    for figures in evaluations.read():
        listener.evaluated(figures)


def _report(run: RunDirectory, options: AgentOptions) -> None:
    """Prints the last evaluation of a complete run, and advice if it learned little."""
    last = {name: column[-1] for name, column in read_metrics(run.path, "evaluator").items()}
    share = last.get("failed_share", np.nan)
    failed = f", {share:.0%} failed" if np.isfinite(share) else ""
    print(
        f"evaluation return {number(last['episode_return'])} over {counted(last['episodes'])} "
        f"(min {number(last['episode_return_min'])}, "
        f"median {number(last['episode_return_median'])}, "
        f"max {number(last['episode_return_max'])}{failed}) after "
        f"{last['environment_steps']:,.0f} environment steps, {last['learner_steps']:,.0f} learner "
        f"steps, {clock(last['wall_time'])}",
        *advise(run.path, options.plain()),
        sep="\n",
        flush=True,
    )
