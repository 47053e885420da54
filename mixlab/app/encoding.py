"""Arrays inside JSON: their shape, their type, and their bytes in base64."""

import base64
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """Replace numpy arrays in an answer by {"shape", "type", "data"}: uint8 stays, all else becomes float32."""
    if isinstance(value, np.ndarray):
        kind = "uint8" if value.dtype == np.uint8 else "float32"
        data = np.ascontiguousarray(value, dtype="<f4" if kind == "float32" else "u1")
        return {"shape": list(value.shape), "type": kind, "data": base64.b64encode(data.tobytes()).decode()}
    if isinstance(value, dict):
        return {key: to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    return value
