"""Where the output of nodes that run in processes goes."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

import launchpad as lp
from launchpad.engines import terminals
from tests.launchpad import programs


def talkers():
    """Returns a program with two nodes that print, and run until the stop."""
    program, _ = programs.recorder_program()
    with program.group("talker"):
        for _ in range(2):
            program.add_node(lp.PyNode(programs.talk_until_stop))
    return program


def eventually(get, expected):
    deadline = time.monotonic() + 60
    while (found := get()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_the_last_line_is_awaited_while_this_process_gets_no_time(monkeypatch):
    may_write, lines = threading.Event(), []

    class Slow(terminals.CurrentTerminal):
        def writer(self, node):
            return lambda target, text: may_write.wait(60) and lines.append(text)

    monkeypatch.setattr(terminals, "CurrentTerminal", Slow)
    program = lp.Program("test")
    program.add_node(lp.PyNode(print, "last"), label="node")
    manager = lp.launch(program, "test_mp")
    threading.Timer(2.0, may_write.set).start()
    assert manager.wait(60)
    assert lines == ["last\n"]


@pytest.mark.timeout(150)
def test_output_to_files(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.setenv("LAUNCHPAD_LOGGING_DIR", str(tmp_path / "logs"))
    manager = lp.launch(talkers(), "test_mp", terminal="output_to_files")
    (directory,) = (tmp_path / "logs").iterdir()
    files = [directory / f"talker_{index}.log" for index in range(2)]
    for file in files:
        eventually(
            lambda file=file: file.exists() and file.read_text(), "first line\nsecond line\n"
        )
    manager.stop_and_wait()
    assert files[0].read_text().endswith("second line\nstopped\n")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert f"the output of the nodes goes to {directory}" in caplog.text
    assert "first line" not in capfd.readouterr().out


def test_a_file_that_cannot_be_opened_is_replaced_by_this_terminal(
    tmp_path, monkeypatch, caplog, capsys
):
    monkeypatch.setenv("LAUNCHPAD_LOGGING_DIR", str(tmp_path))
    files = terminals.Files()
    shutil.rmtree(files.directory)
    files.writer("node/0")("stdout", "a line\n")
    files.close()
    assert capsys.readouterr().out == "[node/0] a line\n"
    assert "the output of node/0 goes to this terminal: [Errno 2]" in caplog.text
