"""Lines of other processes are copied to the output of this one."""

import io
import os
import signal
import sys
import threading
import time

import pytest

from rl_replicator.processes import output


def copy(data, prefix="[a] "):
    """Copies `data` as a process would print it; returns once it is copied."""
    reading, writing = os.pipe()
    copier = output.LineCopier(output.prefixed(prefix), "stdout", os.fdopen(reading, "rb"))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(data)
    copier.drain(timeout=60)


def test_every_line_has_a_prefix_and_an_end(capsys):
    copy(b"one\n\nthree \xff\nfour")
    assert capsys.readouterr().out == "[a] one\n[a] \n[a] three \ufffd\n[a] four\n"


def test_of_overwritten_text_the_final_state_is_a_line(capsys, monkeypatch):
    copy(b"1/2\r2/2\r   \rtext\none\r\n\r\nthree\r", prefix="")
    assert capsys.readouterr().out == "text\none\n\nthree\n"
    monkeypatch.setattr(output, "_LINE_BYTES", 8)  # A bar without an end fills no memory.
    copy(b"1234567\r89", prefix="")
    assert capsys.readouterr().out == "89\n"


@pytest.mark.parametrize("is_chatty", [False, True])
def test_an_orphan_that_keeps_the_pipe_is_not_awaited(capsys, is_chatty):
    reading, writing = os.pipe()
    copier = output.LineCopier(output.prefixed("[a] "), "stdout", os.fdopen(reading, "rb"))
    is_over = threading.Event()

    def chat():
        while not is_over.is_set():
            os.write(writing, b"orphan\n")

    orphan = threading.Thread(target=chat)
    os.write(writing, b"last\n")
    if is_chatty:
        orphan.start()
    begun = time.monotonic()
    copier.drain(timeout=120)
    assert time.monotonic() - begun < 60
    assert capsys.readouterr().out.startswith("[a] last\n")
    is_over.set()
    if is_chatty:
        orphan.join()
    os.close(writing)
    copier.drain(timeout=60)


def test_lines_that_were_read_are_awaited_until_they_are_written():
    reading, writing = os.pipe()
    written, may_write = [], threading.Event()

    def write(target, text):
        may_write.wait()
        written.append(text)

    copier = output.LineCopier(write, "stdout", os.fdopen(reading, "rb"))
    os.write(writing, b"one\ntwo\n")
    copier.drain(timeout=0.1)
    assert not written
    threading.Timer(0.1, may_write.set).start()
    copier.drain(timeout=60)
    assert written == ["one\n", "two\n"]
    os.close(writing)
    copier.drain(timeout=60)


def test_no_line_is_lost_to_an_encoding(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    copy("Gr\u00fc\u00dfe\n".encode())
    assert raw.getvalue() == b"[a] Gr??e\n"


def test_a_process_does_not_block_when_nobody_reads_us(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    copy(b"0123456789abcde\n" * 2**14)  # More than a pipe holds.
    reading, writing = os.pipe()
    os.close(reading)
    # Unbuffered, because a buffer would fail again when it is deleted.
    broken = io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True)
    monkeypatch.setattr(sys, "stdout", broken)
    copy(b"0123456789abcde\n" * 2**14)  # More than a pipe holds.
    broken.detach().close()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with status 0"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGRTMIN - 1, f"was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_ends_are_described(code, text):
    assert output.describe_end(code) == text
