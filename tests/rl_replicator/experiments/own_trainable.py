"""What the trainables of tests share: options are those of a dataclass."""

import dataclasses

from rl_replicator.cli import options
from rl_replicator.runs.plain_data import from_plain


class OwnTrainable:
    """Implements `rl_replicator.cli.trainables.Trainable`, but for the training itself."""

    options_type: type

    def parse(self, words, stored):
        default = self.options_from(stored) if len(stored) > 2 else None  # That of a run.
        place = ["--run-dir", stored["run_dir"]] if stored.get("run_dir") and not default else []
        return options.parse(self.options_type, "rl-replicator train", [*words, *place], default)

    def options_from(self, plain):
        names = {field.name for field in dataclasses.fields(self.options_type)}
        known = {name: value for name, value in plain.items() if name in names}
        return from_plain(self.options_type, known)
