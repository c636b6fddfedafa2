"""Checks of the Kubernetes manifests: their fields, and the view of `rdzv`.

The checks need no cluster.

| kind | checked with |
|---|---|
| kinds of Kubernetes itself | `kubernetes-validate`, which refuses unknown fields |
| JobSet, TrainingRuntime, TrainJob | the models of `kubeflow-trainer-api`; an unknown field is refused here |
| LeaderWorkerSet, Volcano's Job | a schema of the fields around the pod template, in this folder |

Every pod template is checked as a pod of Kubernetes. `rdzv run --explain` resolves the command line
of every container, with the variables that its operator sets.
"""

import copy
import json
import os
import re
import subprocess
import typing
from pathlib import Path

import jsonschema
import kubernetes_validate
import pydantic
import pytest
import yaml
from kubeflow_trainer_api import models

HERE = Path(__file__).parent
MANIFESTS = sorted(HERE.parent.glob("*.yaml"))
KUBERNETES = "1.37"
RDZV = os.environ["RDZV_BINARY"]

MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "TrainJob": models.TrainerV1alpha1TrainJob,
}
SCHEMAS = {
    "LeaderWorkerSet": "leader-worker-set.json",
    "volcano": "volcano-job.json",
}

# For each manifest: the variables of its second pod, and the expected results of `rdzv`.
PODS = {
    "indexed-job": ({}, ["4", "c10d", "train-0.train:29400"]),
    "jobset": ({}, ["4", "c10d", "train-node-0-0.train:29400"]),
    "trainer": (
        {
            "PET_NNODES": "4",
            "PET_NPROC_PER_NODE": "8",
            "PET_NODE_RANK": "1",
            "PET_MASTER_ADDR": "train-node-0-0.train",
            "PET_MASTER_PORT": "29500",
        },
        ["4", "static", "train-node-0-0.train:29500"],
    ),
    "leader-worker-set": (
        {
            "LWS_GROUP_SIZE": "4",
            "LWS_WORKER_INDEX": "1",
            "LWS_LEADER_ADDRESS": "serve-0.serve.default",
        },
        ["4", "c10d", "serve-0.serve.default:29400"],
    ),
    "volcano": (
        {
            "MASTER_ADDR": "train-master-0.train",
            "MASTER_PORT": "29400",
            "RANK": "1",
            "WORLD_SIZE": "4",
        },
        ["4", "static", "train-master-0.train:29400"],
    ),
}


def documents(manifest):
    return [document for document in yaml.safe_load_all(manifest.read_text()) if document]


def check_fields(value, annotation, path):
    """Refuses fields that a model does not have; pydantic ignores them by default."""
    for inner in typing.get_args(annotation):
        check_fields(value, inner, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_fields(item, annotation, f"{path}[{index}]")
    if not (isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)):
        return
    if not isinstance(value, dict):
        return
    fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
    for key, item in value.items():
        assert key in fields, f"{path} has no field {key}"
        check_fields(item, fields[key].annotation, f"{path}.{key}")


def check(document):
    """Raises if a field is unknown, missing or has the wrong type."""
    kind = document["kind"]
    if document["apiVersion"].startswith("batch.volcano.sh/"):
        kind = "volcano"
    if kind in MODELS:
        check_fields(document, MODELS[kind], kind)
        MODELS[kind].from_dict(document)
    elif kind in SCHEMAS:
        schema = json.loads((HERE / SCHEMAS[kind]).read_text())
        jsonschema.Draft202012Validator(schema).validate(document)
    else:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    for template in templates(document):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def mappings(value, path=()):
    """Yields every mapping in a document, with its path."""
    if isinstance(value, dict):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, (dict, list)):
            yield from mappings(item, (*path, key))


def templates(document):
    """Returns the pod templates of a document."""
    return [
        mapping
        for _, mapping in mappings(document)
        if "containers" in mapping.get("spec", {})
    ]


def line(document):
    """Returns the command line of the first container that has one."""
    for _, mapping in mappings(document):
        if "command" in mapping:
            return mapping["command"]
    return None


def test_every_manifest_is_here():
    assert {manifest.stem for manifest in MANIFESTS} == set(PODS)
    text = (HERE.parent.parent.parent / "docs" / "kubernetes.md").read_text()
    for manifest in MANIFESTS:
        assert f"examples/kubernetes/{manifest.name}" in text, manifest


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_has_the_fields_of_its_kinds(manifest):
    for document in documents(manifest):
        check(document)


# Mappings in which the user chooses the keys.
FREE = {"labels", "annotations", "selector", "plugins", "torch", "metadata", "limits", "requests"}


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_field_that_does_not_exist_is_noticed_wherever_it_stands(manifest):
    for number, document in enumerate(documents(manifest)):
        for path, _ in mappings(document):
            if path and path[-1] in FREE:
                continue
            changed = copy.deepcopy(document)
            place = changed
            for key in path:
                place = place[key]
            place["cmd"] = "x"
            with pytest.raises(Exception):  # noqa: B017, each library has a different class
                check(changed)
                pytest.fail(f"{manifest.name}[{number}] {path}")


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_the_line_of_a_pod_means_what_its_operator_means(manifest, tmp_path):
    variables, (nodes, backend, endpoint) = PODS[manifest.stem]
    lines = [words for document in documents(manifest) if (words := line(document))]
    assert len(lines) == 1
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables}
    words = [
        re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in lines[0]
    ]
    assert words[:2] == ["rdzv", "run"]
    explained = subprocess.run(
        [RDZV, "run", "--explain=json", *words[2:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert explained.returncode == 0, explained.stderr
    sections = json.loads(explained.stdout)["sections"]
    found = {line["name"]: line["value"] for section in sections for line in section["lines"]}
    assert [found["nodes"], found["backend"], found["endpoint"]] == [nodes, backend, endpoint]
    if backend == "static":
        assert found["this node's rank"] == "1"
    assert found["restarts after failures"] == "3"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_workers_end_before_their_pod_is_killed(manifest):
    words = next(words for document in documents(manifest) if (words := line(document)))
    timeout = next(word for word in words if word.startswith("--shutdown-timeout="))
    periods = [
        template["spec"]["terminationGracePeriodSeconds"]
        for document in documents(manifest)
        for template in templates(document)
    ]
    # Half a minute remains for the report, the logs and a guard that has to kill.
    assert periods and all(period >= int(timeout.split("=")[1]) + 30 for period in periods)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_probes_ask_the_port_of_health(manifest):
    for document in documents(manifest):
        for template in templates(document):
            (container,) = template["spec"]["containers"]
            variables = {each["name"]: each["value"] for each in container["env"]}
            ports = {each["name"]: each["containerPort"] for each in container["ports"]}
            assert ports["health"] == int(variables["TORCHELASTIC_HEALTH_CHECK_PORT"])
            probe = container["readinessProbe"]["httpGet"]
            assert (probe["path"], probe["port"]) == ("/", "health")
