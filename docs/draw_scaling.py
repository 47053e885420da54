"""Draw the figure of long_sequences.md from its stored numbers: `python docs/draw_scaling.py`."""

import json
from pathlib import Path

from mixlab.analysis.figures import save_charts
from mixlab.bench.dense import scaling_charts

HERE = Path(__file__).parent

if __name__ == "__main__":
    measured = json.loads((HERE / "studies" / "long_sequences.json").read_text(encoding="utf-8"))
    save_charts(scaling_charts(measured["backbones"]), HERE / "gallery" / "long-sequences.png")
