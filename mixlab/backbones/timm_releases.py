"""Weights that timm releases: what is said where they cannot be had."""

from pathlib import Path

import timm

from mixlab.errors import InputError, WorkError, did_you_mean


def check_release(name: str, timm_name: str, weights: str | Path) -> None:
    """Refuse the name of weights that timm releases where a file of weights is asked for."""
    architecture, given = timm_name.split(".")[0], str(weights).removeprefix("timm/")
    released = timm.list_pretrained(f"{architecture}.*")
    found = [release for release in released if given in (release, release.partition(".")[2])]
    if found and not Path(weights).exists():
        raise InputError(
            f"{weights} is a name of released weights, and weights of {name} are given as a file: "
            f"`hf download timm/{found[0]} model.safetensors --local-dir .` fetches it; in Python, "
            f'create_model("timm/{found[0]}", pretrained=True) does'
        )


def not_downloaded(name: str, error: OSError) -> WorkError:
    reason = (str(error.__cause__ or error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return WorkError(
        f"timm could not download the weights of {name} ({reason}); check the connection, or give --weights FILE"
    )


def unknown_tag(name: str) -> InputError:
    architecture, _, tag = name.partition(".")
    known = [release.partition(".")[2] for release in timm.list_pretrained(f"{architecture}.*")]
    hint = did_you_mean(tag, known, otherwise=f"its tags are {', '.join(known) or 'none'}")
    return InputError(f"timm's {architecture} has no weights tagged {tag!r}; {hint}")
