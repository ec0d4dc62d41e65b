"""Which installed packages and settings fit together, and which do not."""

import re
from importlib import metadata

import pytest

from rl_replicator.cli import diagnosis

PINS = [
    "mujoco==3.17.0",
    "numpy<2,>=1.26",
    "protobuf<5,>=4.25",
    "dm-control==1.0.50",
    'ruff; extra == "dev"',
]


@pytest.fixture
def installed(monkeypatch):
    """The versions that appear to be installed; starts with a set that fits."""
    versions = {
        "mujoco": "3.17.0",
        "numpy": "1.26.4",
        "protobuf": "4.25.9",
        "dm-control": "1.0.50",
    }

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: PINS)
    return versions


def _found(verdict):
    return [finding for finding in diagnosis._packages() if finding.verdict == verdict]


def test_the_pinned_set_fits(installed):
    assert [finding.subject for finding in _found(diagnosis.OK)] == list(installed)
    assert not _found(diagnosis.WRONG) and not _found(diagnosis.NOTE)


@pytest.mark.parametrize(
    ("name", "version", "text", "advice"),
    [
        ("mujoco", "3.16.0", "3.16.0, tested with ==3.17.0", "pip install 'mujoco==3.17.0'"),
        ("numpy", "2.1.0", "tested with", "pip install 'numpy<2,>=1.26'"),
        ("protobuf", "5.29.1", "tested with", "pip install 'protobuf<5,>=4.25'"),
        ("dm-launchpad", "0.5.2", "hides this project's", "pip uninstall dm-launchpad"),
    ],
)
def test_pairs_that_do_not_fit(installed, name, version, text, advice):
    installed[name] = version
    (finding,) = _found(diagnosis.WRONG)
    assert finding.subject == name
    assert text in finding.text and version in finding.text
    assert finding.advice.startswith(advice)


def test_missing_packages(installed, monkeypatch):
    del installed["mujoco"]
    (finding,) = _found(diagnosis.WRONG)
    assert finding.text == "not installed"
    assert finding.advice == "pip install 'mujoco==3.17.0'"

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert [finding.subject for finding in _found(diagnosis.WRONG)] == ["rl-replicator"]


def test_other_packages_add_findings(distribution, monkeypatch):
    group = f"[{diagnosis.GROUP}]\nmine = tests.cli.test_doctor:findings\n"
    distribution("another", "1.0", group)
    monkeypatch.syspath_prepend(distribution.site)
    assert next(iter(diagnosis._registered())) == findings()[0]


def findings():
    return [diagnosis.Finding(diagnosis.NOTE, "mine", "so-so")]


def test_status_when_something_does_not_fit(command, distribution, tmp_path):
    distribution("dm-launchpad", "0.5.2")
    for name in ("json", "sitecustomize"):  # In the working directory, from which nothing runs.
        (tmp_path / f"{name}.py").write_text("print('it ran')")
    done = command("doctor", TF_ENABLE_ONEDNN_OPTS="0")
    assert done.returncode == 1, done.stderr
    assert "it ran" not in done.stdout
    assert "WRONG oneDNN: TensorFlow computes without it" in done.stdout
    assert "unset TF_ENABLE_ONEDNN_OPTS" in done.stdout
    assert "WRONG dm-launchpad: 0.5.2" in done.stdout
    assert "pip uninstall dm-launchpad" in done.stdout
    assert "ok    Python: 3.11" in done.stdout
    assert "TensorFlow devices: CPU:0" in done.stdout
    # Which is faster depends on the load of the machine, too.
    drawn = (
        r"renderer: (none|.*; frames/s of cartpole:balance at 64x64: fast [1-9]\d*, exact [1-9])"
    )
    assert re.search(drawn, done.stdout)
    assert done.stderr == ""


def test_numpy_that_tensorflow_cannot_load(command, distribution):
    distribution("numpy", "2.4.0")
    done = command("envs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "got 2.4.0; pip install 'numpy<2" in done.stderr
    assert command("--help").returncode == 0
    done = command("doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert "WRONG numpy: 2.4.0, tested with" in done.stdout
    assert "WRONG TensorFlow: cannot be imported: expected numpy<2" in done.stdout


def test_status_when_all_fits(monkeypatch, capsys):
    good = diagnosis.Finding(diagnosis.OK, "Python", "3.11.2")
    note = diagnosis.Finding(diagnosis.NOTE, "disk", "3 GB free", "make room")
    bad = diagnosis.Finding(diagnosis.WRONG, "numpy", "2.0", "pip install numpy")
    monkeypatch.setattr(diagnosis, "examine", lambda: iter([good, note]))
    assert diagnosis.doctor([]) == 0
    printed = capsys.readouterr().out
    assert printed == "ok    Python: 3.11.2\nnote  disk: 3 GB free; make room\n\nAll fits.\n"
    monkeypatch.setattr(diagnosis, "examine", lambda: iter([good, bad, bad]))
    assert diagnosis.doctor([]) == 1
    assert "WRONG numpy: 2.0; pip install numpy" in capsys.readouterr().out


def test_tensorflow_that_cannot_be_imported(monkeypatch):
    def broken(name):
        raise ImportError("libtensorflow: undefined symbol\nmore")

    monkeypatch.setattr(diagnosis.importlib, "import_module", broken)
    (finding,) = [found for found in diagnosis.examine() if found.subject == "TensorFlow"]
    assert finding.text == "cannot be imported: libtensorflow: undefined symbol"
