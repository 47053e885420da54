"""timm's own models: their names, how they are built, the images they were made for, and weights that timm releases."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import timm

from mixlab.backbones.backbone import Backbone
from mixlab.errors import InputError, WorkError, did_you_mean
from mixlab.plugins import is_ours


class Pixels(NamedTuple):
    """The images that a model was made for."""

    image: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_share: float


def known_pixels(model: Any, timm_name: str, fields: dict[str, Any]) -> Pixels:
    """As timm knows them; of a model that is registered without a config, the model's own size and ImageNet's scale."""
    config = getattr(model, "pretrained_cfg", None) or {}
    return Pixels(
        image=known_size(model, timm_name, fields)[1],
        channels=fields.get("in_chans", 3),
        mean=tuple(config.get("mean") or Backbone.pixel_mean),
        std=tuple(config.get("std") or Backbone.pixel_std),
        crop_share=float(config.get("crop_pct") or Backbone.crop_share),
    )


def known_size(model: Any, timm_name: str, fields: dict[str, Any]) -> tuple[int, int]:
    """The height and the width of images that a model was made for."""
    own = getattr(getattr(model, "patch_embed", None), "img_size", None)
    has_config = timm.get_pretrained_cfg(timm_name) is not None
    config = getattr(model, "pretrained_cfg", None) or {}
    size = fields.get("img_size") or (None if has_config else own) or config.get("input_size") or 224
    return (size, size) if isinstance(size, int) else (size[-2], size[-1])


def create_timm(name: str, fields: dict[str, Any]) -> Any:
    """timm's own model, without a classifier unless the fields ask for one."""
    if not timm.is_model(name.split(".")[0]):
        hint = did_you_mean(name, timm_names(), otherwise="`mixlab models 'timm/*'` lists all", prefix="timm/")
        raise InputError(f"timm {timm.__version__} has no model {name!r}; {hint}")
    if _is_ours(name.split(".")[0]):
        raise InputError(f"timm knows {name} from mixlab alone; write {name}, without timm/")
    if "checkpoint_path" in fields:
        raise InputError(f"write weights={fields['checkpoint_path']!r} instead of checkpoint_path, as for all models")
    ours = {"num_classes": 0, "dynamic_img_size": True}  # only ViTs take the latter; others take any size or say so
    while True:
        try:
            return timm.create_model(name, **{**ours, **fields})
        except (TypeError, AssertionError) as error:  # unknown fields, and wrong values
            refused = next((key for key in ours if key not in fields and f"'{key}'" in str(error)), None)
            if refused is None:
                raise InputError(_misfit(name, fields, str(error))) from error
            del ours[refused]
        except OSError as error:  # the hub's errors of connections and missing files
            raise not_downloaded(name, error) from error
        except RuntimeError as error:
            if "Invalid pretrained tag" not in str(error):
                raise
            raise unknown_tag(name) from error


def timm_names() -> list[str]:
    """The models that timm itself defines."""
    return [name for name in timm.list_models() if not _is_ours(name)]


def _is_ours(name: str) -> bool:
    """Whether timm has a model of that name from us (`timm_registry`)."""
    return is_ours(timm.model_entrypoint(name))


def _misfit(name: str, fields: dict[str, Any], error: str) -> str:
    """Which field a model does not accept, from the text of the TypeError."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", error)
    if unknown:
        return f"timm's {name} has no field {unknown[1]!r}; leave it out, or name a model that has one"
    given = ", ".join(f"{key}={value!r}" for key, value in fields.items()) or "no fields"
    return f"timm's {name} cannot be built with {given}: {error or 'refused'}; check them against timm's own"


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
