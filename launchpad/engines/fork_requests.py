"""The requests of the launcher to the fork server."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# Kinds of requests. CHECK is answered with what keeps the server from forking, or with FREE. FORK
# is followed by a space and the node's name, and answered with its process id.
IMPORT, CHECK, FORK = b"import", b"check", b"fork"
FREE = b"free"
# Largest message in either direction, in bytes; longer data is sent in a memory file.
MESSAGE_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Imports:
    """What to import: the contents of the memory file of an IMPORT.

    Attributes:
      names: The names of modules. Errors of their imports are left to the nodes.
      argv: The launcher's command line: some modules read it when they are imported.
      search_path: Directories from which to import first.
    """

    names: Sequence[str]
    argv: Sequence[str]
    search_path: Sequence[str]
