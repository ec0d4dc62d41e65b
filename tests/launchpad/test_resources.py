"""The resources of nodes: the environment of their processes, GPUs, CPUs."""

from __future__ import annotations

import dataclasses
import os

import pytest

import launchpad as lp
from launchpad.engines import member as lp_member
from launchpad.engines import placement
from tests.launchpad import programs


def _members(**groups: list[lp.PythonProcess]) -> list[lp_member.Member]:
    return [
        lp_member.Member(label, index, lp.PyNode(print), config)
        for label, configs in groups.items()
        for index, config in enumerate(configs)
    ]


def test_processes_share_the_gpus_of_the_machine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    part, whole = lp.PythonProcess(gpus=0.5), lp.PythonProcess(gpus=1)
    found = placement.environments(
        _members(
            actor=[part, part],
            learner=[lp.PythonProcess(gpus=2)],
            blind=[lp.PythonProcess(gpus=0)],
            free=[lp.PythonProcess()],
        )
    )
    seen = {name: environment.get("CUDA_VISIBLE_DEVICES") for name, environment in found.items()}
    assert seen == {
        "actor/0": "3",
        "actor/1": "3",
        "learner/0": "5,7",
        "blind/0": "",
        "free/0": None,
    }
    with pytest.raises(ValueError, match=r"learner/3 asks for 1 GPUs, and of the 3 .* 0 are left"):
        placement.environments(_members(learner=[whole] * 4))
    with pytest.raises(ValueError, match="asks for 4096 CPUs"):
        placement.environments(_members(big=[lp.PythonProcess(cpus=4096)]))


@pytest.mark.parametrize("parts", [(0.9, 0.1), (0.7, 0.2, 0.1), [1 / 7] * 7])
def test_parts_of_a_gpu_may_add_up_to_all_of_it(monkeypatch, parts):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    nodes = [lp.PythonProcess(gpus=part) for part in parts]
    found = placement.environments(_members(node=nodes))
    assert [e["CUDA_VISIBLE_DEVICES"] for e in found.values()] == ["3"] * len(parts)
    with pytest.raises(ValueError, match=r"asks for 0\.001 GPUs, and of the 1 .* 0 are left"):
        placement.environments(_members(node=[*nodes, lp.PythonProcess(gpus=0.001)]))


_CLUSTER = [placement.Machine("a", "10.0.0.1", 4, 0), placement.Machine("b", "10.0.0.2", 2, 1)]


def test_what_fits_on_no_machine_is_refused():
    fitting = _members(learner=[lp.PythonProcess(gpus=1)], actor=[lp.PythonProcess(cpus=4)])
    assert placement.place(fitting, _CLUSTER, can_grow=False) == {}
    with pytest.raises(ValueError, match="and no machine") as caught:
        placement.place(
            _members(learner=[lp.PythonProcess(cpus=3, gpus=1)]), _CLUSTER, can_grow=True
        )
    assert str(caught.value) == (
        "node learner/0 asks for 3 CPUs and 1 GPUs, and no machine of the cluster has them "
        "(10.0.0.1: 4 CPUs, 0 GPUs; 10.0.0.2: 2 CPUs, 1 GPUs): lower local_resources, or add a "
        "machine"
    )
    many = _members(actor=[lp.PythonProcess(cpus=2)] * 4)
    with pytest.raises(ValueError, match="asks for 8 CPUs and 0 GPUs in all, and this Ray has 6"):
        placement.place(many, _CLUSTER, can_grow=False)
    placement.place(many, _CLUSTER, can_grow=True)  # They wait for the cluster to grow.
    parts = _members(actor=[lp.PythonProcess(gpus=part) for part in (0.05, 0.55, 0.3, 0.1)])
    placement.place(parts, _CLUSTER, can_grow=False)  # Naively summed, they exceed 1 by rounding.


def test_colocations_go_to_one_machine_each():
    members = _members(one=[lp.PythonProcess(cpus=1)] * 2, two=[lp.PythonProcess(cpus=1)] * 2)
    for member in members:
        member.colocation = {"one": 1, "two": 2}[member.label]
    chosen = placement.place(members, _CLUSTER, can_grow=False)
    assert chosen == {"one/0": "a", "one/1": "a", "two/0": "b", "two/1": "b"}


@pytest.mark.parametrize("engine", ["test_mp", "ray"])
def test_nodes_see_their_environment(engine, request, tmp_path, monkeypatch):
    """A group's own PYTHONPATH comes before where the launcher imports from."""
    if engine == "ray":
        request.getfixturevalue("ray_connection")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for directory in ("launcher", "group"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "lp_demo_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "launcher")
    monkeypatch.chdir(tmp_path)
    program, recorder = programs.recorder_program(tmp_path / "entries")
    names = ("DEMO", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH")
    for label in ("told", "fresh", "untold"):
        program.add_node(lp.PyNode(programs.record_environment, names, recorder), label=label)
    env = {"DEMO": 3, "PYTHONPATH": f"{tmp_path}:group"}  # Relative to the working directory.
    told = lp.PythonProcess(env=env, threads=2, gpus=0)
    resources = {"told": told, "fresh": dataclasses.replace(told, fresh_interpreter=True)}
    lp.launch(program, engine, local_resources=resources).wait(timeout=60)
    hidden = "" if engine == "ray" else os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = ["3", "", "2", f"{tmp_path}:group", f"{tmp_path}/group/lp_demo_module.py"]
    path = os.environ.get("PYTHONPATH")
    plain = [None, hidden, None, path, f"{tmp_path}/launcher/lp_demo_module.py"]
    rows = (tmp_path / "entries").read_text().splitlines()
    assert sorted(rows) == sorted(map(str, [seen, seen, plain]))
