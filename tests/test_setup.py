"""The errors of `make` on an incomplete machine; the lock file; the pre-commit hooks."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "expected Python 3.11 as '{}'.*apt-get install python3.11.* make PYTHON="),
        ("echo 3.13", "expected Python 3.11, got 3.13 from '{}'; say where 3.11 is"),
        (
            'case "$2" in *version_info*) echo 3.11 ;; *) exit 1 ;; esac',
            "expected Python's venv module, found none; 'apt-get install python3.11-venv'",
        ),
    ],
)
def test_a_machine_without_the_right_python(tmp_path, script, told):
    python = tmp_path / "python"
    if script is not None:  # It stands in for the interpreter.
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    done = subprocess.run([ROOT / ".ci" / "venv", python], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("rl-replicator: error: ") and re.search(told.format(python), line)


def test_install_says_what_to_type_next():
    words = ["make", "-o", ".venv/complete", "install"]  # As if it had just been installed.
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert "Installed. Next: source .venv/bin/activate" in done.stdout.splitlines(), done


def test_lock_is_portable_and_complete():
    """Every package has one version and a hash; no line names a host or a path."""
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|^-|(?<!\\)\n\s*/", text, re.MULTILINE)
    entries = re.split(r"\n(?=\S)", text.strip())
    names = set()
    for entry in entries:
        name, version = re.match(r"([\w.-]+)==(\S+)", entry).groups()
        assert "--hash=sha256:" in entry, (name, version)
        names.add(name.lower())
    pyproject = (ROOT / "pyproject.toml").read_text()
    for name, version in re.findall(r'"([\w-]+)==([\w.]+)"', pyproject):
        assert re.search(rf"^{name}=={re.escape(version)} ", text, re.MULTILINE | re.IGNORECASE)
    assert {"setuptools", "wheel", "packaging", "pytest", "ruff", "mypy"} <= names


def test_pre_commit_runs_what_make_check_runs():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    entries = re.findall(r"entry: \.venv/bin/(.*)", hooks)
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"\$\(BIN\)/(.*)", recipe[1])
    # --force-exclude only applies the configured exclusions to the files that pre-commit passes.
    assert [entry.replace(" --force-exclude", "") for entry in entries] == commands
