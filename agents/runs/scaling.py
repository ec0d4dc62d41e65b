"""The number of actors of a live run, which `rl-replicator scale` changes.

The command writes the wanted number to `RUN_DIR/actors.json`. The process that launched the run
reads the file every second, and adds actors or lets the last ones end. A continued run reads it
too. The run's config keeps the `--actors` of its command, which distinguishes the same command from
one with another number.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launchpad as lp
from agents.nodes.counter import Counter
from agents.runs.launching import check_actors
from agents.runs.options import AgentOptions
from rl_replicator.errors import UsageError, cannot_write, check_option
from rl_replicator.runs import actor_count, events
from rl_replicator.runs.run_directory import RunDirectory

_NEW_FILE = ".actors.json.new"
_GROUP = "actor"
# A run that is just starting notices the change when its nodes are up.
SECONDS_TO_SCALE = 300.0
_POLL_SECONDS = 0.2


class Scaler:
    """Gives a running program the wanted number of actors."""

    def __init__(
        self,
        run_dir: Path,
        count: int,
        manager: lp.ProgramManager,
        make_actor: Callable[[int, int], lp.PyClassNode] | None,
    ):
        """Changes nothing yet.

        Args:
          run_dir: the run's directory.
          count: actors that the program was launched with.
          manager: the manager of the program.
          make_actor: makes the node of an actor from its index and the total number of actors; None
            if the program has a fixed number.
        """
        self._run_dir = run_dir
        self._wanted = count
        # `count` was known when the run wrote its config.
        self._noted = RunDirectory(run_dir).described
        # Indices of the actors that were added and not told to end since.
        self._present = set(range(count))
        self._manager = manager
        self._make_actor = make_actor
        self._is_limited = False

    def tick(self, counter: Counter) -> None:
        """Adds actors that are missing, and tells the counter which ones are to end.

        Args:
          counter: the counter of the program; grants no steps to actors beyond the wanted number.

        Raises:
          CourierError: if the counter does not answer; the next call tries again.
          ProgramStoppedError: if an actor is to be added and the program is stopping.
        """
        # Read first: a number that is written between the two reads is then noted again.
        written = actor_count.written(self._run_dir)
        wanted = actor_count.read(self._run_dir)
        is_new = wanted != self._wanted or written > self._noted
        if wanted is not None and self._make_actor is not None and is_new:
            # Also if the number is the same, after another one that was not noticed: its command
            # waits.
            before, self._wanted, self._noted = self._wanted, wanted, written
            self._is_limited = True
            events.record(self._run_dir, events.RUN, events.SCALED, f"{before} to {wanted}")
        if not self._is_limited or self._make_actor is None:
            return
        # Every time: a restarted counter has no limit.
        counter.limit_actors(self._wanted)
        indices = set(range(self._wanted))
        self._present &= indices
        # An actor that was just removed may still be ending, or go on: the next call checks it
        # again.
        for index in sorted(indices - self._present - self._manager.live_nodes(_GROUP)):
            self._manager.add_node(self._make_actor(index, self._wanted), _GROUP, index)
            self._present.add(index)


def settle(run: RunDirectory, options: AgentOptions) -> AgentOptions:
    """Returns the options of a continued run with the number of actors that was wanted last.

    Args:
      run: directory of the run.
      options: the options as given to the command. If their `--actors` differs from that of the
        run's config, it is newer than the number that `request` has written.
    """
    wanted = actor_count.read(run.path)
    if wanted is None or options.deterministic or options.actors != _option(run):
        return options
    return dataclasses.replace(options, actors=wanted)


def forget_older(run: RunDirectory, option: int) -> None:
    """Removes a wanted number that a newer `--actors` has replaced.

    Args:
      run: directory of the run, which this process has locked; its config is still that of the
        previous command.
      option: `--actors` of the command.
    """
    if run.exists and option != _option(run):
        (run.path / actor_count.FILE).unlink(missing_ok=True)


def _option(run: RunDirectory) -> int | None:
    """Returns `--actors` of the command that the run was last started or continued with."""
    return (run.config().get("options") or {}).get("actors")


def request(run_dir: Path, actors: int) -> str:
    """Writes the wanted number of actors of a run, and waits until a live run notices it.

    Args:
      run_dir: the run's directory.
      actors: their number.

    Returns:
      A line that describes what happens.

    Raises:
      UsageError: if the run cannot have that many, its directory cannot be written, or the run does
        not notice the change.
    """
    run = RunDirectory(run_dir)
    run.check_single()
    stored = run.config().get("options") or {}
    if "actors" not in stored or stored.get("deterministic"):
        raise UsageError(
            f"expected a run of an agent with actors of its own in {run_dir}, got one with a fixed "
            "number of processes; scale a run that was started without --deterministic"
        )
    before = actor_count.read(run_dir) or stored["actors"]
    _check(stored, before, actors)
    known = len(events.read(run_dir))
    new = run_dir / _NEW_FILE
    try:
        new.write_text(json.dumps({"actors": actors}) + "\n", "utf-8")
        os.replace(new, run_dir / actor_count.FILE)
    except OSError as error:
        raise cannot_write(
            f"cannot write to the run directory {run_dir}: {error}", error
        ) from error
    if before == actors:
        return f"{run_dir} has {actors} actors already"
    change = f"{run_dir}: {before} to {actors} actors"
    if not run.is_live:
        return f"{change}, when the run is continued with its command"
    if not _is_noticed(run, known, actors):
        raise UsageError(
            f"expected the run in {run_dir} to take notice within {SECONDS_TO_SCALE:g} s, but it "
            "has not; look at its output, or stop and continue it"
        )
    newest = actor_count.read(run_dir)
    if newest not in (None, actors):
        return f"{run_dir}: another command has asked for {newest} actors since"
    return change


def _check(stored: dict[str, Any], before: int, actors: int) -> None:
    check_option(actors >= 1, "actors", "at least 1", actors)
    environments = actors * stored["envs_per_actor"]
    check_option(
        environments % stored["replay_shards"] == 0,
        "actors",
        f"a number whose environments the {stored['replay_shards']} replay servers share evenly",
        actors,
    )
    check_option(
        actors >= stored["caches"], "actors", f"at least one a cache, {stored['caches']}", actors
    )
    added = actors - before
    if added > 0 and stored["address"] is None:  # Only the new ones need free memory.
        check_actors(added, stored["envs_per_actor"], stored["launch"], None)


def _is_noticed(run: RunDirectory, known: int, actors: int) -> bool:
    """Waits until a live run has noted a change after its first `known` events.

    Also returns if the run need not notice it, because another number of actors was written.
    """
    deadline = time.monotonic() + SECONDS_TO_SCALE
    while time.monotonic() < deadline and run.is_live:
        if actor_count.read(run.path) != actors:
            return True
        if any(event.event == events.SCALED for event in events.read(run.path)[known:]):
            return True
        time.sleep(_POLL_SECONDS)
    return not run.is_live
