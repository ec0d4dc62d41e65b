"""The choice of an OpenGL implementation, and pictures."""

import os
import subprocess
import sys
from concurrent import futures

import pytest

import environments
from environments.errors import RenderingUnavailableError
from environments.pixels import rendering

FAULTY = "tests.environments.faulty"


@pytest.fixture
def fresh(monkeypatch):
    """No renderer has been found or requested yet."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    rendering.find.cache_clear()
    yield monkeypatch
    rendering.find.cache_clear()


def _answers(monkeypatch, answers):
    tried = []

    def probe(kind, timeout=60.0):
        tried.append(kind)
        return rendering.Renderer(kind, answers[kind]) if kind in answers else "not here"

    monkeypatch.setattr(rendering, "probe", probe)
    return tried


def test_egl_comes_first_and_osmesa_second_unless_one_is_chosen(fresh):
    tried = _answers(fresh, {"egl": "NVIDIA A100", "osmesa": "llvmpipe"})
    assert rendering.find() == rendering.Renderer("egl", "NVIDIA A100")
    assert not rendering.find().is_software and tried == ["egl"]
    rendering.find.cache_clear()
    tried = _answers(fresh, {"osmesa": "llvmpipe (LLVM 15.0.6, 256 bits)"})
    assert rendering.find().kind == "osmesa" and rendering.find().is_software
    assert tried == ["egl", "osmesa"]
    rendering.find.cache_clear()
    fresh.setenv("MUJOCO_GL", "osmesa")
    tried = _answers(fresh, {"egl": "x", "osmesa": "y"})
    assert rendering.find().kind == "osmesa" and tried == ["osmesa"]


def test_without_opengl(fresh):
    _answers(fresh, {})
    message = (
        r"found none \(egl: not here; osmesa: not here\); install it with .*libegl1 .*libosmesa6"
    )
    with pytest.raises(RenderingUnavailableError, match=message):
        rendering.find()
    fresh.setenv("MUJOCO_GL", "off")
    message = "got MUJOCO_GL=off, which disables it; unset MUJOCO_GL"
    with pytest.raises(RenderingUnavailableError, match=message):
        environments.make("cartpole:swingup", 1, environments.PixelConfig())


def test_a_probe_that_hangs_or_fails_says_so(fresh):
    def hang(*args, **kwargs):
        raise subprocess.TimeoutExpired("python", 2)

    def crash(*args, **kwargs):
        return subprocess.CompletedProcess([], -11, "", "")

    fresh.setattr(subprocess, "run", hang)
    assert rendering.probe("egl", timeout=2) == "no answer within 2 s"
    fresh.setattr(subprocess, "run", crash)
    assert rendering.probe("egl") == "exit status -11"


def test_a_kind_that_is_not_installed_is_named(fresh):
    fresh.setenv("MUJOCO_GL", "osmesa")
    if isinstance(rendering.probe("osmesa"), rendering.Renderer):
        pytest.skip("OSMesa is installed here")
    message = r"found none \(osmesa: .+\); install it with 'apt-get install libosmesa6 libgl1'"
    with pytest.raises(RenderingUnavailableError, match=message) as caught:
        rendering.find()
    assert "\n" not in str(caught.value)


def test_the_first_cuda_device(fresh):
    for value, device in (("1", 1), ("3,0", 3), ("", None), ("-1", None), ("GPU-5ebe9fb4", None)):
        fresh.setenv("CUDA_VISIBLE_DEVICES", value)
        assert rendering.first_cuda_device() == device


def test_the_users_egl_device_is_kept(fresh):
    if not isinstance(rendering.probe("egl"), rendering.Renderer):
        pytest.skip("needs EGL")
    fresh.setenv("MUJOCO_EGL_DEVICE_ID", "99")
    assert "MUJOCO_EGL_DEVICE_ID must be" in rendering.probe("egl")


def test_the_egl_device_is_told_to_mujoco(fresh):
    fresh.setattr(rendering, "probe", lambda kind: rendering.Renderer(kind, "NVIDIA A100", 2))
    fresh.setattr(rendering.importlib, "import_module", lambda name: Backend)
    fresh.setenv("MUJOCO_EGL_DEVICE_ID", "")  # Both are restored afterwards.
    fresh.setenv("MUJOCO_GL", "")
    rendering.find.cache_clear()
    rendering.enable()
    assert os.environ["MUJOCO_EGL_DEVICE_ID"] == "2"
    assert os.environ["MUJOCO_GL"] == "egl"


class Backend:
    """Stands for dm_control's backend, which is loaded only once per process."""

    BACKEND, Renderer = "egl", object


def test_an_import_without_opengl_is_not_the_users_choice(fresh):
    _answers(fresh, {"egl": "llvmpipe"})
    fresh.delitem(sys.modules, "dm_control._render", raising=False)
    with futures.ThreadPoolExecutor() as pool:
        with rendering.opengl_disabled():
            assert os.environ["MUJOCO_GL"] == "disabled"
            found = pool.submit(rendering.find)
            with pytest.raises(futures.TimeoutError):
                found.result(0.2)
        assert found.result(60.0).kind == "egl"
    assert "MUJOCO_GL" not in os.environ


def test_the_variable_is_left_alone_once_it_has_been_read(fresh):
    environments.names()
    with rendering.opengl_disabled():
        assert "MUJOCO_GL" not in os.environ


def test_an_idle_gpu_is_one_line(tmp_path):
    software = rendering.Renderer("egl", "llvmpipe (LLVM 15.0.6, 256 bits)")
    assert rendering.advice(software, str(tmp_path)) == ""
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    assert "libgl1-mesa-dri" in rendering.advice(software, str(tmp_path))
    (tmp_path / "nvidia0").touch()
    advice = rendering.advice(software, str(tmp_path))
    assert "nvidia0), but llvmpipe" in advice and "libegl-nvidia0" in advice
    assert "\n" not in advice
    assert rendering.advice(rendering.Renderer("egl", "NVIDIA A100"), str(tmp_path)) == ""


def test_auto_is_fast_on_software(fresh):
    for render, name, look in (
        ("auto", "llvmpipe", "fast"),
        ("auto", "NVIDIA A100", "exact"),
        ("exact", "llvmpipe", "exact"),
        ("fast", "NVIDIA A100", "fast"),
    ):
        rendering.find.cache_clear()
        _answers(fresh, {"egl": name})
        assert rendering.resolve(render) == look


@pytest.fixture(scope="module")
def renderer():
    try:
        return rendering.find()
    except RenderingUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("cartpole:swingup", [f"{FAULTY}:inverted_within"]),
        # Even if nothing has imported MuJoCo before, and if the viewer belongs to a held object.
        ("gym:tests.environments.odd:tests/Holding-v0", []),
        ("gym:tests.environments.odd:tests/DrawnAtOnce-v0", []),
    ],
)
def test_a_user_may_draw_the_first_frame(renderer, fresh, name, wrap):
    """With dm_control or MuJoCo, which are imported without OpenGL."""
    code = f"""
import environments
environment = environments.make("{name}", seed=0, wrap={wrap})
environment.reset()
print([len(set(environment.render(48, 64).ravel())) > 1 for _ in range(2)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[True, True]"], done.stderr


def test_a_user_who_draws_where_no_opengl_works_is_told_so(fresh):
    code = f"""
import environments
environment = environments.make("{FAULTY}:inverted_physics", seed=0)
environment.reset()
try:
    environment.render(48, 64)
except environments.RenderingUnavailableError as error:
    print(error)
"""
    fresh.setenv("MUJOCO_GL", "off")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MUJOCO_GL=off, which disables it" in done.stdout, done.stderr
