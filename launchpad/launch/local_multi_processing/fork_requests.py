"""What the launcher asks of the fork server."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# Kinds of requests. CHECK is answered by what keeps the server from forking, or by FREE. FORK is
# followed by a space and the node's name, and answered by its process id.
IMPORT, CHECK, FORK = b"import", b"check", b"fork"
FREE = b"free"
# Largest message in either direction, in bytes; what is longer travels in a memory file.
MESSAGE_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Imports:
    """What to import, in the memory file of an IMPORT.

    Attributes:
      names: The names of modules. Those that can't be imported are left to the nodes.
      argv: The launcher's command line: some modules read it when they are imported.
      search_path: Where to import from first.
    """

    names: Sequence[str]
    argv: Sequence[str]
    search_path: Sequence[str]
