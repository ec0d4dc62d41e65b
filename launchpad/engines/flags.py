"""The absl flags of Launchpad."""

from __future__ import annotations

import logging
import sys
from typing import Any

from absl import flags

from launchpad.runtime import LaunchType

FLAGS = flags.FLAGS

_logger = logging.getLogger("launchpad")

LAUNCH_TYPE = flags.DEFINE_enum(
    "lp_launch_type",
    LaunchType.LOCAL_MULTI_THREADING.value,
    [t.value for t in LaunchType],
    "How to launch a program if lp.launch() has no launch_type.",
    allow_override=True,
)
TERMINATION_NOTICE_SECS = flags.DEFINE_integer(
    "lp_termination_notice_secs",
    10,
    "Seconds from the request to stop until nodes are killed; 0 kills at once, a negative number "
    "never.",
    allow_override=True,
)
CLUSTER_ADDRESS = flags.DEFINE_string(
    "lp_address",
    None,
    "Ray cluster to run on: host:port, or 'env' for RAY_ADDRESS; none to start a Ray.",
    allow_override=True,
)
# Upstream's, for command lines that have them; they do nothing here.
_IGNORED = (
    flags.DEFINE_bool("lp_worker_manager_v2", False, "Ignored.", allow_override=True),
    flags.DEFINE_bool("tmux_open_window", False, "Ignored.", allow_override=True),
    flags.DEFINE_string("tmux_session_name", "launchpad", "Ignored.", allow_override=True),
)


def parse_if_needed() -> None:
    """Parses the command line's known flags, for programs that don't use absl's app.run().

    Raises:
      absl.flags.Error: a flag has an invalid value, or is missing; for absl's own flags, a warning
        is logged instead.
    """
    if FLAGS.is_parsed():
        return
    ours = flags.FlagValues()
    for module, defined in FLAGS.flags_by_module_dict().items():
        for flag in defined if module.partition(".")[0] != "absl" else ():
            ours[flag.name] = flag
    others = ours(sys.argv, known_only=True)
    try:
        FLAGS(others, known_only=True)
    except flags.Error as error:
        # An option of a script that does not use absl, such as `-v`, which absl.logging also has.
        FLAGS.mark_as_parsed()
        _logger.warning("flags of absl itself are not read from this command line: %s", error)


def tell_ignored() -> None:
    """Logs the flags of the command line that have no effect."""
    for holder in _IGNORED:
        if FLAGS[holder.name].present:
            _logger.warning("--%s has no effect here", holder.name)


def value_of(holder: flags.FlagHolder[Any]) -> Any:
    """Returns the value of a flag, or its default if no flags are parsed."""
    return holder.value if FLAGS.is_parsed() else holder.default
