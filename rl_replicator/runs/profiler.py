"""TensorFlow's profile of some steps of a run, for TensorBoard."""

import logging
import re
from pathlib import Path

from rl_replicator.errors import check_option

_LOG = logging.getLogger("rl_replicator")


def parse_span(text: str) -> tuple[int, int]:
    """Parses the steps to profile.

    Args:
      text: "START:END".

    Returns:
      (START, END), with 0 <= START < END.

    Raises:
      ConfigError: if it is anything else.
    """
    numbers = re.fullmatch(r"(\d+):(\d+)", text)
    start, end = (int(number) for number in numbers.groups()) if numbers else (0, 0)
    check_option(
        start < end, "profile_steps", "START:END, two numbers of steps such as 100:120", text
    )
    return start, end


class StepProfiler:
    """Profiles the steps of a span, once: operators, threads, and copies between devices.

    The profile covers the whole process, including the actors of a run in threads. It consists of
    whole compiled calls, those that take steps of the span, and can be viewed with TensorBoard's
    profile plugin (`tensorboard-plugin-profile`).
    """

    def __init__(self, span: str | None, run_dir: Path):
        """Profiles nothing yet.

        Args:
          span: steps since the start of the run, as `parse_span` takes them; None for none.
          run_dir: the run's directory; the profile goes to its `tensorboard/`.

        Raises:
          ConfigError: if the span is malformed.
        """
        self._span = parse_span(span) if span else None
        self._folder = run_dir / "tensorboard"
        self._is_on = False
        self._before: int | None = None

    def reach(self, step: int) -> None:
        """Starts or ends the profile if that is due. Call it between calls of the step.

        Args:
          step: steps done since the start of the run.
        """
        if self._span is None:
            return
        start, end = self._span
        # The next call is likely to take as many steps as the last one.
        count = 1 if self._before is None else step - self._before
        self._before = step
        if self._is_on and step >= end:
            self.close()
        elif not self._is_on and start - count < step < end:
            import tensorflow as tf

            tf.profiler.experimental.start(str(self._folder))
            self._is_on = True
        elif not self._is_on and step >= end:
            _LOG.warning("no profile: step %d is past --profile-steps %d:%d", step, start, end)
            self._span = None

    def close(self) -> None:
        """Ends the profile if it has begun, and writes it."""
        if self._is_on:
            import tensorflow as tf

            tf.profiler.experimental.stop()
            _LOG.info("profile of the steps in %s", self._folder / "plugins" / "profile")
            self._is_on = False
        elif self._span is not None and (self._before or 0) < self._span[1]:
            _LOG.warning("no profile: the run ended before --profile-steps %d:%d", *self._span)
        self._span = None
