"""Choosing an OpenGL, and pictures."""

import subprocess

import numpy as np
import pytest

import environments
from environments import rendering
from environments.errors import RenderingUnavailableError


@pytest.fixture
def fresh(monkeypatch):
    """No renderer found yet, and none asked for."""
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


def test_egl_comes_first(fresh):
    tried = _answers(fresh, {"egl": "NVIDIA A100", "osmesa": "llvmpipe"})
    assert rendering.find() == rendering.Renderer("egl", "NVIDIA A100")
    assert not rendering.find().is_software
    assert tried == ["egl"]


def test_osmesa_comes_second(fresh):
    tried = _answers(fresh, {"osmesa": "llvmpipe (LLVM 15.0.6, 256 bits)"})
    assert rendering.find().kind == "osmesa"
    assert rendering.find().is_software
    assert tried == ["egl", "osmesa"]


def test_the_users_choice_is_kept(fresh):
    fresh.setenv("MUJOCO_GL", "osmesa")
    tried = _answers(fresh, {"egl": "x", "osmesa": "y"})
    assert rendering.find().kind == "osmesa"
    assert tried == ["osmesa"]


def test_nothing_works(fresh):
    _answers(fresh, {})
    message = (
        r"got none \(egl: not here; osmesa: not here\); install it with .*libegl1 .*libosmesa6"
    )
    with pytest.raises(RenderingUnavailableError, match=message):
        rendering.find()


def test_switched_off(fresh):
    fresh.setenv("MUJOCO_GL", "off")
    with pytest.raises(
        RenderingUnavailableError, match="MUJOCO_GL=off, which switches it off; unset MUJOCO_GL"
    ):
        rendering.find()


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
    message = r"got none \(osmesa: .+\); install it with 'apt-get install libosmesa6 libgl1'"
    with pytest.raises(RenderingUnavailableError, match=message) as caught:
        rendering.find()
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def renderer():
    try:
        return rendering.find()
    except RenderingUnavailableError as error:
        pytest.skip(str(error))


def test_pictures(renderer):
    environment = environments.make("cartpole:swingup", seed=0)
    environment.reset()
    frame = environment.render(48, 64)
    assert frame.shape == (48, 64, 3) and frame.dtype == np.uint8
    assert len(np.unique(frame)) > 20
    for _ in range(100):
        environment.step(np.ones(1, np.float32))
    assert np.any(environment.render(48, 64) != frame)
    assert renderer.name


def test_terrain_is_drawn_anew(renderer):
    """quadruped:escape makes no OpenGL context at its first reset, and uploads its terrain at later
    ones."""
    environment = environments.make("quadruped:escape", seed=0)
    environment.reset()
    first = environment.render(48, 64)
    environment.reset()
    assert np.any(environment.render(48, 64) != first)


def test_fakes_have_no_pictures():
    environment = environments.make("environments.fakes:chain", seed=0)
    with pytest.raises(
        environments.EnvironmentSpecError, match="expected an environment that renders, got Chain"
    ):
        environment.render()
