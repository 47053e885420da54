"""How a network came to be, as the page says it: a dense task is trained on a backbone that was trained before."""

from dataclasses import replace

from mixlab.report.findings import Findings
from mixlab.run import UNTRAINED, Measurement, Subject
from mixlab.run.protocols import DetectionProtocol, SegmentationProtocol

TASKS = {SegmentationProtocol: "segmentation", DetectionProtocol: "detection"}
TASK_OF_METHOD = {"segment": "segmentation", "detect": "detection"}  # as the config of a run calls them


def shown_measurements(findings: Findings) -> list[Measurement]:
    """All of them, with one training for each network of a dense task: "dino, then segmentation", or "segmentation"
    alone from scratch. Its scores are measured on a backbone of a training, its speed on a run of a task: both are one
    network, and none of them is an untrained one.
    """
    given = [m for m in findings.measurements.values() if m.subject.model]
    found = {_network(m.subject): _trained(m) for m in given if type(m.protocol) in TASKS}
    shown = []
    for m in given:
        is_dense = type(m.protocol) in TASKS or m.subject.training in TASK_OF_METHOD
        if is_dense:
            training = found.get(_network(m.subject)) or TASK_OF_METHOD[m.subject.training]
            record = findings.record_of[m.identity]
            m = replace(m, subject=replace(m.subject, training=training))
            findings.record_of.setdefault(m.identity, record)
        shown.append(m)
    return shown


def _network(subject: Subject) -> tuple[str, str, int]:
    return (subject.label, subject.model, subject.num_parameters)


def _trained(m: Measurement) -> str:
    task, before = TASKS[type(m.protocol)], TASK_OF_METHOD.get(m.subject.training, m.subject.training)
    return task if before in ("", UNTRAINED, task) else f"{before}, then {task}"
