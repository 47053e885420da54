"""Backbones on the Hugging Face Hub, and in folders of the same form."""

import json
from pathlib import Path
from typing import Self

from huggingface_hub import ModelHubMixin, hf_hub_download

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"  # for readers and the Hub's own counting; the weights file alone is enough to load

CARD = """---
{{ card_data }}
---

A vision backbone of mixlab. `config.json` says how it is built; the same is in the metadata of the weights.

```python
import mixlab

model = mixlab.Backbone.from_pretrained("...")  # the name of this repository, or a folder with these files
features = model(images)  # (B, 3, H, W) -> (B, D)
```
"""


class HubMixin(  # type: ignore[call-arg]
    ModelHubMixin,
    library_name="mixlab",
    pipeline_tag="image-feature-extraction",
    tags=["vision", "token-mixer"],
    model_card_template=CARD,
):
    """`save_pretrained`, `push_to_hub` and `from_pretrained`. Every backbone has them, hence the late imports."""

    def _save_pretrained(self, save_directory: Path) -> None:
        from mixlab.backbones.weights import save_weights

        save_weights(self, save_directory / WEIGHTS_FILE)
        text = json.dumps(self.architecture(), indent=2)
        (save_directory / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
    ) -> Self:
        """A backbone in evaluation mode, from a folder of `save_pretrained` or from the Hub."""
        from mixlab.backbones.weights import WeightsError, model_from_file

        folder = Path(pretrained_model_name_or_path)
        path = folder / WEIGHTS_FILE
        if not folder.is_dir():
            path = Path(
                hf_hub_download(
                    repo_id=str(pretrained_model_name_or_path),
                    filename=WEIGHTS_FILE,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
            )
        model = model_from_file(path).eval()
        if not isinstance(model, cls):
            raise WeightsError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}; call it on Backbone")
        return model
