"""Every chart of mixlab, for files, the report and the documentation alike: distinct with any colour vision, every
axis named.
"""

from mixlab.errors import naming_extras

with naming_extras():
    from mixlab.analysis.figures.chart import (
        FAMILY_NAMES,
        OTHER,
        STYLE,
        Chart,
        LineStyle,
        legend_key,
        line_styles,
        save_charts,
        save_figure,
        untrained_style,
    )
    from mixlab.analysis.figures.curves import cost_by_pixels, cost_by_tokens, layer_curves, training_curves
    from mixlab.analysis.figures.pictures import (
        detection_pictures,
        layer_pictures,
        map_pictures,
        part_pictures,
        pca_pictures,
        prediction_pictures,
    )
    from mixlab.analysis.figures.ranks import (
        block_ranks,
        distances,
        matrix_with_ranks,
        rank_by_layer,
        shrunk,
        spectra,
    )
    from mixlab.analysis.figures.readings import framed, mixing_pictures, reading_over
    from mixlab.analysis.figures.scores import roc, study_charts

__all__ = [
    "FAMILY_NAMES",
    "OTHER",
    "STYLE",
    "Chart",
    "LineStyle",
    "block_ranks",
    "cost_by_pixels",
    "cost_by_tokens",
    "detection_pictures",
    "distances",
    "framed",
    "layer_curves",
    "layer_pictures",
    "legend_key",
    "line_styles",
    "map_pictures",
    "matrix_with_ranks",
    "mixing_pictures",
    "part_pictures",
    "pca_pictures",
    "prediction_pictures",
    "rank_by_layer",
    "reading_over",
    "roc",
    "save_charts",
    "save_figure",
    "shrunk",
    "spectra",
    "study_charts",
    "training_curves",
    "untrained_style",
]
