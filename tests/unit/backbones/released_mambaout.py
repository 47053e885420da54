"""The names of MambaOut's released state dicts."""


def released_mambaout_name(name: str) -> str:
    """timm's name of a MambaOut parameter -> that of the released state dicts."""
    for ours, theirs in (
        ("head.pre_logits.fc.", "head.fc1."),
        ("head.pre_logits.norm.", "head.NORM."),  # not to be taken for the next
        ("head.norm.", "norm."),
        ("head.fc.", "head.fc2."),
        ("stem.", "downsample_layers.0."),
        (".blocks.", "."),
    ):
        name = name.replace(ours, theirs)
    parts = name.replace("NORM", "norm").split(".")
    return ".".join(["downsample_layers", parts[1], *parts[3:]] if "downsample" in parts else parts)
