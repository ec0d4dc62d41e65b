"""The documentation names no command, option, file or name that does not exist."""

import argparse
import re

import pytest

from agents.runs.command import AgentCommand
from rl_replicator.cli import main, options, trainables
from rl_replicator.cli.results import CompareOptions, ExportOptions, PlotOptions
from rl_replicator.jobs import supervisor
from rl_replicator.learners.command import LearnerCommand
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import RunDirectory
from tests import structure
from tests.distributions import install
from tests.docs import references
from tests.docs.references import DOCUMENTS, ROOT

pytestmark = pytest.mark.timeout(300)  # The first test imports all packages.

# Options of programs that are not ours: Ray, uv, Slurm, TensorBoard.
FOREIGN_FLAGS = {
    "--compile-bytecode",
    "--dashboard-port",
    "--logdir",
    "--max-worker-port",
    "--min-worker-port",
    "--node-manager-port",
    "--object-manager-port",
    "--signal",
    "--port",
    "--address",
}
by_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@pytest.fixture
def parsed(monkeypatch, tmp_path):
    """Commands that would have started their work, as (command, options); the work is skipped."""
    reached = []

    def train(self, chosen, *_):
        reached.append(("train", chosen))
        if chosen.run_dir is not None:  # For the commands that use the run.
            chosen.run_dir.mkdir(parents=True, exist_ok=True)
            plain = to_plain(chosen)
            RunDirectory(chosen.run_dir).describe(self.name, {}, plain)
        return 0

    def use(self, *arguments, **settings):
        reached.append(("use", (arguments, settings)))
        return 0

    for kind in (AgentCommand, LearnerCommand):
        monkeypatch.setattr(kind, "train", train)
        monkeypatch.setattr(kind, "evaluate", use)
    name = "rl_replicator.experiments.driver.run"
    monkeypatch.setattr(name, lambda experiment: use(None, experiment))
    # It has checked the options and how they are deployed by then.
    monkeypatch.setattr("agents.cli.plan.known_parts", lambda *arguments: use(*arguments))
    monkeypatch.setattr("agents.cli.plan.show", lambda *_: None)
    # The entry points of this tree, whatever is installed.
    install(tmp_path / "site", "rl-replicator", "0", references.entry_points())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    return reached


def run(words, parsed):
    """Runs the command line until its options are parsed."""
    if words[0] == "plot":
        return options.parse(PlotOptions, "rl-replicator plot", words[1:])
    if words[0] == "export":
        return options.parse(ExportOptions, "rl-replicator export", words[1:])
    if words[0] == "compare":
        return options.parse(CompareOptions, "rl-replicator compare", words[1:])
    if words[0] not in ("train", "eval", "suite", "sweep", "plan"):
        # It cannot be run without its effects; its options must be in its module.
        registered = references.registered_commands()
        own = "rl_replicator.cli." + main.COMMANDS.get(words[0], ("",))[0].partition(":")[0]
        module = registered.get(words[0], own).partition(":")[0]
        text = structure.modules()[module].path.read_text()
        flags = [word[2:].replace("-", "_") for word in words if word.startswith("--")]
        assert [flag for flag in flags if f"{flag}:" not in text] == []
        return None
    if "--help" in words:
        assert main.main(words) == 0
        return None
    count = len(parsed)
    assert (main.main(words) or 0) == 0 and len(parsed) == count + 1
    return None


def test_commands_of_rl_replicator(parsed, tmp_path, capfd):
    """One test, so that all commands share the imports; every different command once."""
    found = [
        (document.name, words)
        for document in DOCUMENTS
        for words in references.commands(document, "rl-replicator")
        if words and "COMMAND" not in words
    ]
    assert len(found) > 40
    (toml,) = references.blocks(ROOT / "docs" / "policies.md", "toml")
    (tmp_path / "settings.toml").write_text(toml)
    for run_dir in ("RUN_DIR", "runs/walker"):
        run(["train", "d4pg", "--env", "walker:walk", "--run-dir", run_dir], parsed)
    tried = set()
    for name, words in found:
        words = [re.sub(r"^(RUN_DIR)\.\.\.$", r"\1", word) for word in words]
        if words == ["train", "module:make_learner"]:
            words = ["train", "spirals_learner:make_learner"]
        if words in (["train", "resnet"], ["video"]) or tuple(words) in tried:
            continue
        tried.add(tuple(words))
        # Directories that machines share are moved below the temporary one.
        words = [f"{tmp_path}{word}" if word.startswith("/") else word for word in words]
        try:
            run(words, parsed)
        except Exception as error:
            raise AssertionError(f"{name}: rl-replicator {' '.join(words)}: {error}") from error
        except AssertionError as error:
            printed = capfd.readouterr().err
            raise AssertionError(f"{name}: rl-replicator {' '.join(words)}: {printed}") from error
    assert len(tried) > 30


def test_commands_of_the_supervisor():
    found = [
        words
        for document in DOCUMENTS
        for words in references.commands(document, "python -m rl_replicator.jobs")
        if words
    ]
    assert len(found) >= 5
    for words in found:
        chosen = supervisor._parser().parse_args(words)
        assert isinstance(chosen, argparse.Namespace) and chosen.workers == 2
        program = chosen.command[1] if chosen.command[0] == "python" else None
        assert program in (None, "train.py") or (ROOT / program).is_file()


@by_document
def test_scripts_and_modules_are_there(document):
    for words in references.commands(document, "python"):
        if words[:1] == ["-m"]:
            path = words[1].replace(".", "/")
            files = {f"{path}.py", f"{path}/__main__.py"} & references.files()
            assert files or words[1] == "pytest", words
        elif words and words[0].endswith(".py") and "/" in words[0]:
            assert (ROOT / words[0]).is_file(), words
            text = (ROOT / words[0]).read_text()
            flags = [word for word in words[1:] if word.startswith("--")]
            assert [flag for flag in flags if f'"{flag}"' not in text] == [], words
    for words in references.commands(document, "pytest"):
        for word in words:
            if word.startswith("tests"):
                assert (ROOT / word).exists(), word
    makefile = (ROOT / "Makefile").read_text()
    for words in references.commands(document, "make"):
        target = words[0] if words else "test"
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) or target[0] == "."


@by_document
def test_files_and_names_are_there(document):
    """The changelog may also name what was removed; `make check` follows the links."""
    code = [] if document.name == "CHANGELOG.md" else references.inline_code(document)
    paths = [text for text in code if references.is_path(text)]
    assert [path for path in paths if not references.path_exists(document, path)] == []
    names = [text for text in code if references.is_name(text)]
    assert [name for name in names if not references.name_exists(name)] == []


@pytest.mark.usefixtures("parsed")
def test_options_are_there(capsys):
    for name in trainables.names():
        for words in ([], ["--pixels"]):
            main.main(["train", name, *words, "--help"])
    declared = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    source = "".join(module.path.read_text() for module in structure.modules().values())
    source += "".join(path.read_text() for path in (ROOT / "bench").glob("*.py"))
    source += "".join(path.read_text() for path in (ROOT / "tests" / "mutants").glob("*.py"))

    def is_there(flag):
        stem = flag.rstrip("*.")
        return (
            flag in FOREIGN_FLAGS
            or any(
                option == flag or (flag != stem and option.startswith(stem)) for option in declared
            )
            or f'"{flag}"' in source
            or f'"{flag[2:].replace("-", "_")}"' in source
            or re.search(rf"^ +{flag[2:].replace('-', '_')}: ", source, re.MULTILINE) is not None
        )

    missing = {
        document.name: [flag for flag in sorted(references.flags(document)) if not is_there(flag)]
        for document in DOCUMENTS
    }
    assert {name: flags for name, flags in missing.items() if flags} == {}
