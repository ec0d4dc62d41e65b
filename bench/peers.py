"""Installs the peers of bench/peers.txt into build/peers, outside the project's environment.

    python -m bench.peers

The folder is made once for each version of bench/peers.txt. It does not contain the peers'
dependencies: they use the project's packages, such as NumPy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from bench.harness import ROOT

REQUIREMENTS = ROOT / "bench" / "peers.txt"
FOLDER = ROOT / "build" / "peers"
_STAMP = FOLDER / "requirements.txt"


def install() -> None:
    """Makes the folder if it is missing or made from other requirements.

    Raises:
      ImportError: if pip fails.
    """
    wanted = REQUIREMENTS.read_text()
    if _STAMP.is_file() and _STAMP.read_text() == wanted:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", str(FOLDER), "-r", str(REQUIREMENTS)]
    if subprocess.run(command, check=False).returncode:
        raise ImportError(f"pip could not install {REQUIREMENTS.relative_to(ROOT)}")
    _STAMP.write_text(wanted)


def enable() -> None:
    """Makes the peers importable in this process, after installing them if necessary.

    Raises:
      ImportError: if they cannot be installed.
    """
    install()
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # At the end: the project's own packages come first.


if __name__ == "__main__":
    install()
    print(FOLDER)
