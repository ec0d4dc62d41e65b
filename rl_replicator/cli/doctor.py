"""`rl-replicator doctor`."""

import dataclasses
from collections.abc import Sequence

from rl_replicator.cli import options


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Check versions, devices and rendering; exit with status 1 if something does not fit."""


def run(args: Sequence[str]) -> int:
    """Prints one line per finding, with advice if something is wrong."""
    options.parse(DoctorOptions, "rl-replicator doctor", args)
    from rl_replicator.cli import diagnosis

    wrong = 0
    for finding in diagnosis.examine():
        wrong += finding.verdict == diagnosis.WRONG
        advice = f"; {finding.advice}" if finding.advice else ""
        print(f"{finding.verdict:<5} {finding.subject}: {finding.text}{advice}", flush=True)
    print(
        f"\nDoes not fit: {wrong}. Lines marked {diagnosis.WRONG} say what to do."
        if wrong
        else "\nAll fits."
    )
    return 1 if wrong else 0
