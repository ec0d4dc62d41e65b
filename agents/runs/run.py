"""A run on one page: options, program, progress, end.

The nodes of the program are wired in `agents/program.py`.
"""

import dataclasses
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acme import specs

import launchpad as lp
from agents.agent import Agent
from agents.config import one_by_one
from agents.nodes.counter import Counter, program_folder
from agents.nodes.run_plan import Replicas, RunPlan
from agents.nodes.saver import holds_last_step
from agents.policies.policy import AgentSource
from agents.program import launch, make_deterministic_program, make_program, share_processors
from agents.replay.checkpoint import part_name, replay_scratch
from agents.runs import preparation, results
from agents.runs.films import Films, film_at_the_end
from agents.runs.options import AgentOptions
from agents.runs.results import AgentProgressLine
from rl_replicator.processes.ports import allowing_open_ports
from rl_replicator.runs import events, trackers
from rl_replicator.runs.run import NewRows, Run, RunListener, opened
from rl_replicator.runs.run_directory import RunDirectory, choose, folder_name


def train(
    source: AgentSource,
    options: AgentOptions,
    root: Path,
    environment_spec: specs.EnvironmentSpec,
    form: Mapping[str, Any],
    listener: RunListener,
) -> int:
    """Trains an agent.

    Args:
      source: makes the agent.
      options: options of the run.
      root: directory of all runs, absolute.
      environment_spec: the spec of the environment that the options name.
      form: what the run and its policy require of the environment, see `Task.described`.
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
    root = root / folder_name(source.name)  # `module:command` becomes "module-command".
    base = f"{folder_name(options.env or str(options.offline))}-seed{options.seed}"
    identity = {**options.identity, "environment": form}
    with (
        allowing_open_ports(options.open_ports),
        choose(root, base, source.name, identity, options.run_dir, options.resume) as directory,
    ):
        # As requested: in another run that begins with them (`--config`), "auto" is resolved for
        # its own task and machine. What this run has chosen is in its identity.
        asked = options.plain()
        options = preparation.resolved(options, directory)
        replicas = Replicas.parse(options.replicas, options.launch, options.learner_gpus)
        agent = source.make_agent(options.agent, environment_spec)
        about = preparation.check(agent, options, replicas)
        prefilling = preparation.Prefilling(options, directory)
        identity = {**options.identity, "environment": form}
        with opened(directory, source.name, identity, listener) as run:
            if run.is_continued and results.is_complete(directory, options):
                print(
                    f"finished: all {options.steps:,} steps of the run in "
                    f"{directory.path} are done; a larger --steps continues it"
                )
                return 0 if run.has_recorded_end else _finish_killed(run, options, prefilling)
            preparation.warn_if_too_short(options)
            run.announce()
            print(*about, sep="\n", end="\n" if about else "", flush=True)
            run.begin(asked, options.score)
            if not run.is_continued:
                prefilling.fill(agent, replicas.num_replicas)
            try:
                return _run(agent, _plan(options, replicas, directory), options, run, listener)
            finally:
                prefilling.close()


def _plan(options: AgentOptions, replicas: Replicas, directory: RunDirectory) -> RunPlan:
    return RunPlan(
        task=options.task,
        seed=options.seed,
        total_steps=options.steps,
        num_actors=options.actors if options.offline is None else 0,
        envs_per_actor=options.envs_per_actor,
        env_engine=options.env_engine,
        num_caches=options.caches,
        num_replay_shards=options.replay_shards,
        online_fraction=options.online_fraction,
        replicas=replicas,
        env_timeout=options.env_timeout,
        evaluation=options.evaluation,
        checkpoint_seconds=options.checkpoint_seconds,
        keep_checkpoints=options.keep_checkpoints,
        profile_steps=options.profile_steps,
        run_dir=directory.path.resolve(),
    )


def _run(
    agent: Agent, plan: RunPlan, options: AgentOptions, run: Run, listener: RunListener
) -> int:
    """Launches the program, shows its progress until it ends, and reports its results."""
    directory = run.directory
    evaluations, times = NewRows(directory, "evaluator"), NewRows(directory, "time")
    make = make_deterministic_program if options.deterministic else make_program
    described = make(agent, plan)
    # Left by a killed program: the whole run continues from its newest checkpoint.
    shutil.rmtree(program_folder(plan.run_dir), ignore_errors=True)
    line = AgentProgressLine(results.describe if plan.num_actors else results.describe_offline)
    films = Films(directory, options.video_every)
    noted, trained_until = 0, 0.0
    with run.failures_recorded():
        # From here on, an error has to stop the program: otherwise the script would wait for it.
        manager = launch(described.program, options.launch, options.address, plan.replicas.gpus)
        try:
            counter: Counter = manager.resolve(described.counter)
            while not manager.wait(timeout=1.0):
                try:
                    progress = counter.progress()
                except (lp.CourierError, lp.ProgramStoppedError):
                    continue  # It is starting, or it is stopping.
                noted = _note_restarts(directory, manager, noted)
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
            noted = _note_restarts(directory, manager, noted)
            line.close()
            films.close()
            is_saved = holds_last_step(directory.path)
            _remove_scratch(directory)
        _tell(listener, evaluations)
    # A run may stop without a signal, if it was launched by a node of a program that stops.
    is_complete = (
        manager.signal_number is None and is_saved and results.is_complete(directory, options)
    )
    if noted:
        results.print_goodput(directory, None if is_complete else trained_until)
    if not is_complete:
        lost = "stopped; everything after the last save is lost"
        done = "stopped and saved" if is_saved else lost
        command = f"rl-replicator train --run-dir {shlex.quote(str(directory.path))}"
        print(f"{done}; continue with: {command}", flush=True)
        return run.stop(manager.signal_number)
    # The newest times may be of an earlier start, perhaps with other options.
    return _finish(run, options, has_times=bool(times.read()))


def _finish(run: Run, options: AgentOptions, has_times: bool) -> int:
    """Prints and writes the results of a run that has evaluated its last step."""
    results.report(run.directory, options, has_times)
    if options.video and options.env:
        film_at_the_end(run.directory)
    return run.finish(without=part_name(0))  # A replay may have gigabytes.


def _finish_killed(run: Run, options: AgentOptions, prefilling: preparation.Prefilling) -> int:
    """Finishes a complete run that was killed before its film."""
    Films(run.directory, every=None).close()
    _remove_scratch(run.directory)
    prefilling.close()
    return _finish(run, options, has_times=False)


def _remove_scratch(directory: RunDirectory) -> None:
    """Removes the folders that only a running program needs."""
    for folder in (replay_scratch(directory.path), program_folder(directory.path)):
        shutil.rmtree(folder, ignore_errors=True)


def _note_restarts(directory: RunDirectory, manager: lp.ProgramManager, noted: int) -> int:
    """Records the restarts of nodes beyond the first `noted`; returns how many there are now."""
    restarts = manager.restarts
    for restart in restarts[noted:]:
        events.record(directory.path, restart.node, events.RESTARTED, restart.reason)
    return len(restarts)


def _tell(listener: RunListener, evaluations: NewRows) -> None:
    for figures in evaluations.read():
        listener.evaluated(figures)
