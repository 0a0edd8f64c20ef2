"""How far numbers usually lie apart where some of them are odd."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAD_TO_SD = 1.4826  # median absolute deviation of a normal distribution -> standard deviation


def mad_scale(x: NDArray[np.float64]) -> float:
    """Robust standard deviation: 1.4826 times the median absolute deviation; 0 for fewer than two values."""
    if len(x) < 2:
        return 0.0
    return float(MAD_TO_SD * np.median(np.abs(x - np.median(x))))


def spread(x: NDArray[np.float64], floor: float = 0.0) -> float:
    """The same of those values that are numbers; rounded so coarsely that it vanishes it falls back on the ordinary standard deviation."""
    x = x[np.isfinite(x)]
    return max(mad_scale(x) or (float(x.std()) if len(x) > 1 else 0.0), floor)
