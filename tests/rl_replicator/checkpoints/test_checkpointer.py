"""Checkpoints: complete or absent, checked before use, the same for any number of replicas."""

import contextlib
import ctypes
import ctypes.util
import errno
import json
import os
import pathlib
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import checkpoints
from rl_replicator.checkpoints import parts, pending_work


class Blob:
    """A part of one file."""

    def __init__(self, content=b""):
        self.content = content

    def save(self, folder):
        (folder / "blob").write_bytes(self.content)

    def restore(self, folder):
        self.content = (folder / "blob").read_bytes()


class FullDisk:
    """A part that writes a little and then finds the disk full."""

    def save(self, folder):
        (folder / "half").write_bytes(b"x" * 1000)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def restore(self, folder):
        raise AssertionError("never saved")


def names(directory):
    return sorted(path.name for path in pathlib.Path(directory).iterdir())


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture
def saved(tmp_path):
    """Two checkpoints, of steps 10 and 20."""
    checkpointer = checkpoints.Checkpointer(tmp_path)
    for step in (10, 20):
        checkpointer.save(step, {"blob": Blob(b"content of step %d" % step), "other": Blob(b"o")})
    return checkpointer


def test_keeps_the_newest(saved, tmp_path):
    assert names(tmp_path) == ["000001_step_10", "000002_step_20"]
    saved.save(20, {"blob": Blob(b"again")})
    assert names(tmp_path) == ["000002_step_20", "000003_step_20"]
    info = saved.latest()
    assert (info.step, info.parts, info.num_bytes) == (20, ("blob",), 5)
    blob = Blob()
    assert saved.restore({"blob": blob}) == info
    assert blob.content == b"again"


def test_the_newest_is_the_one_of_the_highest_number(tmp_path):
    """Not the one whose name sorts last, and in whatever order the file system lists them."""
    checkpointer = checkpoints.Checkpointer(tmp_path, keep=9)
    checkpointer.save(1, {"blob": Blob(b"1")})
    (tmp_path / "000001_step_1").rename(tmp_path / "999996_step_1")
    for step in range(2, 10):
        blob = Blob(b"%d" % step)
        assert checkpointer.save(step, {"blob": blob}) == checkpointer.latest()
        assert checkpointer.latest().step == step
        assert checkpointer.restore({"blob": Blob()}).step == step
    assert checkpointer.latest().path.name == "1000004_step_9"
    checkpointer.save(10, {"blob": Blob(b"10")})
    assert not (tmp_path / "999996_step_1").exists()
    assert (tmp_path / "999997_step_2").exists()


def test_all_bytes_are_on_the_disk_before_a_checkpoint_has_its_name(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def fsync(descriptor):
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((str(path.relative_to(tmp_path)), names(tmp_path)))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoints.Checkpointer(tmp_path).save(1, {"blob": Blob(b"content")})
    opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert not [path for path in opened if path.startswith(str(tmp_path))]
    temporary, final = ".saving-000001_step_1", "000001_step_1"
    inside = ["", "/blob", "/blob/blob", "/manifest.json"]
    *before, last = synced
    assert sorted(before) == [(temporary + path, [temporary]) for path in inside]
    assert before[-1][0] == temporary  # The folder itself comes after its files.
    assert last == (".", [final])


def test_a_failed_sync_of_the_name_does_not_lose_a_checkpoint(saved, tmp_path, monkeypatch, caplog):
    """The new checkpoint is complete; the older ones stay, in case its name is lost."""
    sync = os.fsync

    def fsync(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert saved.save(30, {"blob": Blob(b"new")}) == saved.latest()
    assert names(tmp_path) == ["000001_step_10", "000002_step_20", "000003_step_30"]
    assert "step 30 is written, but the disk has not confirmed it" in caplog.text


def test_nothing_there(tmp_path):
    checkpointer = checkpoints.Checkpointer(tmp_path / "none")
    assert checkpointer.latest() is None
    with pytest.raises(rr.CheckpointError, match="expected a checkpoint in"):
        checkpointer.restore({})
    assert not (tmp_path / "none").exists()
    with pytest.raises(rr.ConfigError, match="keep to be a whole number of at least 1"):
        checkpoints.Checkpointer(tmp_path, keep=0)


def test_some_parts_alone(saved, tmp_path):
    (tmp_path / "000002_step_20" / "blob" / "blob").unlink()
    other = Blob()
    saved.restore({"other": other})
    assert other.content == b"o"
    (tmp_path / "000002_step_20" / "other" / "blob").write_bytes(b"p")
    with pytest.raises(rr.CheckpointError, match="other/blob, found a different one"):
        saved.restore({"other": other})
    with pytest.raises(rr.CheckpointError, match="expected part 'replay' in .*, found blob, other"):
        saved.restore({"replay": other})


def test_a_checkpoint_that_a_live_run_removes_meanwhile_is_not_called_damaged(saved):
    class Racing(Blob):
        """The run saves twice while this part is read for the first time."""

        def restore(self, folder):
            if folder.parent.name == "000002_step_20":
                for step in (30, 40):
                    saved.save(step, {"blob": Blob(b"content of step %d" % step)})
                assert not folder.exists()
            super().restore(folder)

    blob = Racing()
    assert saved.restore({"blob": blob}).step == 40
    assert blob.content == b"content of step 40"


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-2])


def damage_number(path):
    path.write_bytes(path.read_bytes().replace(b'"step": 20', b'"step": 21'))


@pytest.mark.parametrize(
    ("file", "damage", "finding"),
    [
        ("blob/blob", damage_flip, "found a different one"),
        ("blob/blob", damage_cut, "expected 18 bytes in .*, found 16"),
        ("blob/blob", pathlib.Path.unlink, "expected a file"),
        ("manifest.json", damage_flip, "expected a readable manifest"),
        ("manifest.json", damage_cut, "expected a readable manifest"),
        ("manifest.json", damage_number, "wrong checksum"),
        ("manifest.json", pathlib.Path.unlink, "expected a readable manifest"),
    ],
)
def test_damage_is_found_before_anything_is_restored(
    saved, tmp_path, caplog, file, damage, finding
):
    """Then the damaged checkpoint is set aside, and the one before it is used."""
    path = tmp_path / "000002_step_20" / file
    damage(path)
    other, blob = Blob(b"untouched"), Blob()
    with pytest.raises(
        rr.CheckpointError, match=f"{finding}.*; remove .* if there is one"
    ) as error:
        saved.restore({"other": other, "blob": blob})
    assert str(path) in one_line(error) and other.content == b"untouched"

    info = saved.set_aside_damaged()
    assert names(tmp_path) == ["000001_step_10", "damaged-000002_step_20"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "step 20" in record.getMessage() and "using step 10" in record.getMessage()
    assert saved.restore({"blob": blob}) == info == saved.latest()
    assert blob.content == b"content of step 10"
    saved.save(20, {"blob": Blob(b"new")})  # Reuses the name; the damaged folder stays.
    assert names(tmp_path) == ["000001_step_10", "000002_step_20", "damaged-000002_step_20"]
    damage_flip(tmp_path / "000002_step_20" / "manifest.json")
    assert saved.set_aside_damaged() == info
    assert (tmp_path / "damaged-000002_step_20" / "blob" / "blob").read_bytes() == b"new"


@pytest.mark.parametrize("file", ["blob/blob", "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(saved, tmp_path, monkeypatch, file):
    """It may be intact: nothing is set aside, and the run does not go back to an older one."""
    path, before = tmp_path / "000002_step_20" / file, names(tmp_path)
    open_file = pathlib.Path.open

    def refuse(self, *args, **settings):
        if self == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return open_file(self, *args, **settings)

    monkeypatch.setattr(pathlib.Path, "open", refuse)
    for read in (saved.set_aside_damaged, lambda: saved.restore({"blob": Blob()})):
        with pytest.raises(rr.CheckpointError) as error:
            read()
        assert f"cannot read {path}: {os.strerror(errno.EIO)}; correct" in one_line(error)
    monkeypatch.undo()
    assert names(tmp_path) == before
    assert saved.set_aside_damaged().step == 20


def test_several_damaged_checkpoints_in_a_row(tmp_path, caplog):
    saver = checkpoints.Checkpointer(tmp_path, keep=4)
    for step in (10, 20, 30, 40):
        saver.save(step, {"blob": Blob(b"content of step %d" % step)})
    damage_flip(tmp_path / "000003_step_30" / "blob" / "blob")
    damage_flip(tmp_path / "000004_step_40" / "manifest.json")
    for find in (saver.newest_intact, saver.set_aside_damaged):
        caplog.clear()
        assert find().step == 20
        assert len(caplog.records) == 2 and caplog.text.count("using step 20") == 2
    blob = Blob()
    assert saver.restore({"blob": blob}).step == 20 and blob.content == b"content of step 20"
    expected = ["000001_step_10", "000002_step_20"]
    assert names(tmp_path) == [*expected, "damaged-000003_step_30", "damaged-000004_step_40"]


def test_nothing_is_set_aside_if_no_checkpoint_is_intact(saved, tmp_path):
    for folder in ("000001_step_10", "000002_step_20"):
        damage_flip(tmp_path / folder / "blob" / "blob")
    before = names(tmp_path)
    # Names the newest: the one from which the run would have continued.
    with pytest.raises(
        rr.CheckpointError, match="expected an intact checkpoint in .*, found 2 .*000002_step_20"
    ):
        saved.set_aside_damaged()
    assert names(tmp_path) == before


def test_a_newer_format_is_not_set_aside(saved, tmp_path):
    (tmp_path / "000002_step_20" / "manifest.json").write_text(json.dumps({"format": 99}))
    for read in (saved.set_aside_damaged, lambda: saved.restore({"blob": Blob()})):
        with pytest.raises(rr.CheckpointError, match="format 1 or older .*got 99") as error:
            read()
        one_line(error)
    assert (tmp_path / "000002_step_20").exists()


def test_a_full_disk_leaves_the_older_checkpoints(saved, tmp_path):
    before = names(tmp_path)
    with pytest.raises(rr.CheckpointError, match="step 30 .*No space left.*; free some space"):
        saved.save(30, {"blob": Blob(b"x"), "full": FullDisk()})
    assert names(tmp_path) == before
    assert saved.latest().step == 20


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EDQUOT, "free some space"),
        (errno.EFBIG, r"raise the limit on the size of a file \(ulimit -f\)"),
        (errno.EROFS, "check the disk and its permissions"),
        (errno.EMFILE, r"raise the limit on open files \(ulimit -n\)"),
    ],
)
def test_a_folder_that_cannot_be_made_is_reported(tmp_path, monkeypatch, number, remedy):

    def fail(self, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pathlib.Path, "mkdir", fail)
    match = f"{os.strerror(number)}; {remedy}; older checkpoints are intact$"
    with pytest.raises(rr.DiskError, match=match) as error:
        checkpoints.Checkpointer(tmp_path / "run" / "checkpoints").save(1, {})
    one_line(error)


def test_a_step_may_be_any_integer(saved):
    for step in (np.int64(3), tf.constant(4), -1):
        assert saved.save(step, {"state": parts.JsonPart(lambda: 1, print)}).step == int(step)
        assert saved.latest().step == int(step)
    with pytest.raises(TypeError, match="integer"):
        saved.begin_save(3.0, {})


def test_an_old_checkpoint_that_someone_else_removed_is_no_error(saved, tmp_path):
    class Remover(Blob):
        def save(self, folder):
            super().save(folder)
            shutil.rmtree(tmp_path / "000001_step_10")

    saved.save(30, {"blob": Remover()})
    assert names(tmp_path) == ["000002_step_20", "000003_step_30"]


def test_a_really_full_disk(tmp_path):
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    target = str(tmp_path).encode()
    if libc.mount(b"tmpfs", target, b"tmpfs", 0, b"size=1m"):
        pytest.skip("mounting a small file system is not allowed here")
    try:
        checkpointer = checkpoints.Checkpointer(tmp_path)
        small = {"model": parts.TrackablePart(v=tf.Variable(tf.zeros([1000])))}
        checkpointer.save(1, small)
        large = {"model": parts.TrackablePart(v=tf.Variable(tf.zeros([1_000_000])))}
        with pytest.raises(rr.CheckpointError, match="free some space"):
            checkpointer.save(2, large)
        with pytest.raises(rr.DiskError, match="free some space"):
            checkpointer.save(3, {"blob": Blob(bytes(2_000_000))})
        assert names(tmp_path) == ["000001_step_1"]
        checkpointer.restore(small)
    finally:
        libc.umount(target)


def test_a_mistake_in_a_part_is_not_called_a_full_disk(saved, tmp_path):
    class Broken(Blob):
        def save(self, folder):
            raise tf.errors.InvalidArgumentError(None, None, "a bug")

    with pytest.raises(tf.errors.InvalidArgumentError, match="a bug"):
        saved.save(30, {"broken": Broken()})
    assert names(tmp_path) == ["000001_step_10", "000002_step_20"]


def test_state_that_is_not_a_variable_is_refused(tmp_path):
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2
    )
    checkpointer = checkpoints.Checkpointer(tmp_path)
    with pytest.raises(rr.CheckpointError, match="found a DenseHashTable at 'box/table'"):
        checkpointer.save(1, {"a": parts.TrackablePart(box=tf.train.Checkpoint(table=table))})
    iterator = iter(tf.data.Dataset.range(3))
    with pytest.raises(rr.CheckpointError, match="Iterator at 'iterator'"):
        checkpointer.save(1, {"a": parts.TrackablePart(iterator=iterator)})
    assert checkpointer.latest() is None


def test_a_mismatch_names_the_variable(tmp_path):
    checkpointer = checkpoints.Checkpointer(tmp_path)
    learner = parts.TrackablePart(x=tf.Variable([1.0, 2.0]), y=tf.Variable(3.0))
    checkpointer.save(1, {"blob": Blob(), "a": learner})
    x, y = tf.Variable([0.0, 0.0]), tf.Variable(0.0)
    blob = Blob(b"untouched")  # All parts are checked before any of them is restored.
    with pytest.raises(rr.CheckpointError, match=r"variable 'y': expected no such variable"):
        checkpointer.restore({"blob": blob, "a": parts.TrackablePart(x=x)})
    with pytest.raises(rr.CheckpointError, match=r"variable 'z': expected float32 \[\], found no"):
        checkpointer.restore({"a": parts.TrackablePart(x=x, y=y, z=tf.Variable(0.0))})
    with pytest.raises(
        rr.CheckpointError, match=r"'x': expected float32 \[3\], found float32 \[2\]"
    ):
        checkpointer.restore({"a": parts.TrackablePart(x=tf.Variable([0.0] * 3), y=y)})
    with pytest.raises(rr.CheckpointError, match=r"'x': expected int32 \[2\], found float32 \[2\]"):
        checkpointer.restore({"a": parts.TrackablePart(x=tf.Variable([0, 0]), y=y)})
    assert blob.content == b"untouched" and y.numpy() == 0.0
    checkpointer.restore({"a": parts.TrackablePart(x=x, y=y)})
    assert (x.numpy().tolist(), y.numpy()) == ([1.0, 2.0], 3.0)


class CapturedFullDisk(FullDisk):
    """A part that finds the disk full in the background."""

    def capture(self):
        return self


class Gated(Blob):
    """A part whose captured state is written once its gate is open."""

    def __init__(self, content):
        super().__init__(content)
        self.gate = threading.Event()

    def capture(self):
        captured = Gated(self.content)
        captured.gate = self.gate
        return captured

    def save(self, folder):
        assert self.gate.wait(120)
        super().save(folder)


def test_one_save_at_a_time_and_the_next_one_raises_the_error(saved, tmp_path):
    before = names(tmp_path)
    saved.begin_save(30, {"full": CapturedFullDisk()})
    with pytest.raises(rr.CheckpointError, match="step 30 .*No space left"):
        saved.begin_save(40, {"blob": Gated(b"never begun")})
    assert names(tmp_path) == before
    first = Gated(b"first")
    saved.begin_save(40, {"blob": first})
    threading.Timer(0.1, first.gate.set).start()
    saved.save(50, {"blob": Blob(b"second")})
    assert names(tmp_path) == ["000003_step_40", "000004_step_50"]


def test_restore_waits_for_the_save_that_was_begun(saved):
    gated, blob = Gated(b"begun"), Blob(b"")
    saved.begin_save(30, {"blob": gated})
    threading.Timer(0.1, gated.gate.set).start()
    assert saved.restore({"blob": blob}).step == 30 and blob.content == b"begun"


def test_the_last_save_is_complete_at_the_end_of_the_context(saved, tmp_path, caplog):
    gated = Gated(b"last")
    with saved:
        saved.begin_save(30, {"blob": gated})
        threading.Timer(0.1, gated.gate.set).start()
    assert saved.latest().step == 30
    with pytest.raises(rr.CheckpointError, match="No space left"), saved:
        saved.begin_save(40, {"full": CapturedFullDisk()})
    with pytest.raises(ValueError, match="the program's own"), saved:
        saved.begin_save(40, {"full": CapturedFullDisk()})
        raise ValueError("the program's own")
    assert "No space left" in caplog.records[-1].getMessage()
    assert saved.latest().step == 30


class Worker:
    """Background work, such as steps on parameter servers, which finishes when it is paused."""

    def __init__(self, work):
        self._work = work
        pending_work.register(self)

    @contextlib.contextmanager
    def paused(self, variables=()):
        self._work()
        yield


@pytest.mark.parametrize("method", ["save", "begin_save"])
def test_a_save_holds_what_background_work_has_changed(tmp_path, method):
    state = {"n": 0}
    worker = Worker(lambda: state.update(n=state["n"] + 1))
    checkpointer = checkpoints.Checkpointer(tmp_path)
    getattr(checkpointer, method)(1, {"state": parts.JsonPart(lambda: state, state.update)})
    assert (checkpointer.wait() or checkpointer.latest()).step == 1
    del worker  # Restoring no longer pauses it.
    restored = {}
    checkpointer.restore({"state": parts.JsonPart(dict, restored.update)})
    assert (restored, state) == ({"n": 1}, {"n": 1})


def test_background_work_ends_before_anything_is_restored(saved):
    blob = Blob(b"before")
    found = []
    worker = Worker(lambda: found.append(blob.content))
    saved.restore({"blob": blob})
    assert (found, blob.content) == ([b"before"], b"content of step 20")
    del worker


def test_a_part_that_cannot_be_captured_is_saved_at_once(saved, tmp_path):
    saved.begin_save(30, {"blob": Blob(b"at once"), "gated": parts.JsonPart(dict, print)})
    assert not saved.is_saving
    assert saved.latest().step == 30


def test_a_save_in_the_background_holds_the_state_at_its_beginning(tmp_path):
    x, state, gated = tf.Variable(1.0), {"batches": 10}, Gated(b"gated")
    held = {"x": parts.TrackablePart(x=x), "state": parts.JsonPart(lambda: state, state.update)}
    checkpointer = checkpoints.Checkpointer(tmp_path)
    checkpointer.begin_save(10, {**held, "gated": gated})
    x.assign(2.0)
    state["batches"] = 20
    assert checkpointer.is_saving and checkpointer.latest() is None
    gated.gate.set()
    assert checkpointer.wait() == checkpointer.latest()
    assert not checkpointer.is_saving and checkpointer.wait() is None
    checkpointer.restore(held)
    assert (x.numpy(), state) == (1.0, {"batches": 10})


def test_what_a_killed_save_has_left_is_no_checkpoint(saved, tmp_path):
    (tmp_path / ".saving-000003_step_30" / "slow").mkdir(parents=True)
    assert saved.latest().step == 20
    saved.save(40, {"blob": Blob()})
    assert names(tmp_path) == ["000002_step_20", "000003_step_40"]
