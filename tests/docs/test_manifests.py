"""The files for clusters: they parse, and the command line accepts the options in them."""

import pathlib
import re
import shlex
import subprocess

import pytest
import yaml

from agents.runs.command import AgentCommand
from rl_replicator.cli import train
from rl_replicator.learners.command import LearnerCommand

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
MANIFESTS = DOCS / "manifests"


@pytest.fixture
def parsed(monkeypatch):
    """A function that parses the options of `rl-replicator train ...` as the command does."""
    chosen = []
    for command in (AgentCommand, LearnerCommand):
        monkeypatch.setattr(command, "train", lambda self, options: chosen.append(options))

    def parse(words):
        start = words.index("rl-replicator")
        assert words[start + 1] == "train"
        train.run(words[start + 2 :])
        return chosen[-1]

    return parse


def containers(node):
    """All containers of a manifest, wherever they are."""
    if isinstance(node, dict):
        yield from node.get("containers", ())
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from containers(child)


def test_a_ray_job_trains_on_the_cluster_that_it_makes(parsed):
    job = yaml.safe_load((MANIFESTS / "ray-job.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    chosen = parsed(shlex.split(job["spec"]["entrypoint"]))
    assert (chosen.launch, chosen.address) == ("ray", "env")
    cluster = job["spec"]["rayClusterSpec"]
    project = (DOCS.parent / "pyproject.toml").read_text()
    assert f'"ray=={cluster["rayVersion"]}"' in project
    pods = list(containers(cluster))
    assert len(pods) == 2
    for pod in pods:  # The run's directory is on a volume that all of them mount.
        assert any(str(chosen.run_dir).startswith(v["mountPath"]) for v in pod["volumeMounts"])


def test_a_tf_job_has_equal_workers_and_a_supervisor_in_each(parsed):
    job = yaml.safe_load((MANIFESTS / "tfjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    assert list(job["spec"]["tfReplicaSpecs"]) == ["Worker"]
    (pod,) = containers(job)
    assert pod["name"] == "tensorflow"
    assert pod["command"] == ["python", "-m", "rl_replicator.jobs", "--"]
    assert parsed(pod["args"]).replicas == "multi_worker"


def test_the_slurm_script_is_a_script(parsed):
    path = MANIFESTS / "slurm.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    line = re.search(r"rl-replicator train(?:.*\\\n)*.*", path.read_text())
    *words, background = shlex.split(line.group().replace("\\\n", " "))
    assert background == "&"  # So that the script can forward the time limit's signal.
    chosen = parsed(words)
    assert chosen.launch == "ray" and chosen.address


def test_the_workflow_runs_targets_of_make():
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]
    makefile = (ROOT / "Makefile").read_text()
    targets = [step["run"].split()[-1] for step in job["steps"] if "make" in step.get("run", "")]
    assert targets[-2:] == ["check", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets[-2:])
    (python,) = (s["with"] for s in job["steps"] if s.get("uses", "").startswith("actions/setup"))
    assert f'">={python["python-version"]},' in (ROOT / "pyproject.toml").read_text()
    assert (ROOT / python["cache-dependency-path"]).is_file()
