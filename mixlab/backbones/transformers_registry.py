"""Our backbones in transformers, where that is installed."""

from importlib import import_module

from mixlab.errors import naming_extras


def register_with_transformers() -> None:
    """Make folders of `mixlab export --format transformers` known to `AutoModel` and `AutoConfig`.

    For feature maps of several layers, `mixlab.backbones.transformers_models.MixlabBackbone` reads such a folder.
    `AutoBackbone.from_config` knows it too, but `AutoBackbone.from_pretrained` looks for names on the hub alone.

    No code from such a folder is executed: mixlab builds the model from a checked description.
    """
    with naming_extras():
        import_module("mixlab.backbones.transformers_models")  # registers when it is imported
