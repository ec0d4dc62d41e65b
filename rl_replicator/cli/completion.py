"""`rl-replicator --print-completion SHELL`: completion scripts for shells."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from rl_replicator.cli import options, printed, trainables
from rl_replicator.errors import UsageError

_BASH = """\
_rl_replicator() {{
    local words
    case "${{COMP_WORDS[*]:1:COMP_CWORD-1}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _rl_replicator rl-replicator
"""
_ZSH = """\
#compdef rl-replicator
_rl_replicator() {{
    local words_before="${{(j: :)words[2,CURRENT-1]}}" words
    case "$words_before" in
{cases}
    esac
    compadd -- ${{=words}} || _files
}}
compdef _rl_replicator rl-replicator
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH}


def script(shell: str, commands: Mapping[str, Callable[[Sequence[str]], int]]) -> str:
    """Returns a script that completes commands, names of trainables, and options.

    The options are those of the currently installed packages. Where a value is expected, the shell
    completes file names.

    Args:
      shell: "bash" or "zsh".
      commands: the functions that run the commands, by name.

    Raises:
      UsageError: if the shell is not supported.
    """
    if shell not in _SCRIPTS:
        raise UsageError(
            f"expected {' or '.join(_SCRIPTS)} after --print-completion, got {shell or 'nothing'}"
        )
    # The shell uses the first pattern that matches, so longer ones come before their prefixes.
    cases = [
        f'    {_pattern(words)}) words="{" ".join(choices)}" ;;'
        for words, choices in sorted(_choices(commands).items(), reverse=True)
    ]
    return _SCRIPTS[shell].format(cases="\n".join(cases))


def _pattern(words: str) -> str:
    return f'"{words}"*' if words else '""'


def _choices(commands: Mapping[str, Callable[[Sequence[str]], int]]) -> dict[str, list[str]]:
    """Returns the possible next words of a command, by the words before them."""
    found = {"": ["--help", "--print-completion", "--version", *commands]}
    evaluation: set[str] = {"--help"}
    for name in trainables.names():
        trainable = trainables.load(name)
        kinds = [trainable.options_type([]), *trainable.alternatives().values()]
        declared = [options.declared_options(kind, name) for kind in kinds]
        found[f"train {name}"] = sorted(set().union(*declared))
        evaluation |= {*options.declared_options(trainable.evaluation_options_type, name)}
    found["train"] = [*trainables.names(), "--config", "--help", "--run-dir"]
    found["eval"] = sorted(evaluation)
    for command, run in commands.items():
        if command not in found:
            found[command] = sorted(options.read_help(_help(run)))
    return found


def _help(run: Callable[[Sequence[str]], int]) -> str:
    """Returns the help text of a command."""
    with (
        options.one_column(),
        printed.by_this_thread("stdout") as text,
        contextlib.suppress(SystemExit),
    ):
        run(["--help"])
    return text.getvalue()
