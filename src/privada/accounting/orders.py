"""The orders at which Renyi divergences are computed."""

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from numpy.typing import NDArray

Vector = NDArray[np.float64]
# Which of `ORDERS` are asked for.
Places = tuple[int, ...]

# Whole orders lie an eighth of an octave apart beyond 64: much noise at a tiny delta needs them.
WHOLE = np.concatenate([np.arange(2, 65), *(np.arange(9, 17) * step for step in (8, 16, 32, 64))])
ORDERS: Vector = np.unique(
    np.concatenate([np.array(DEFAULT_RDP_ORDERS, dtype=float), 1 + np.arange(1, 10) / 100, WHOLE])
)
# Those that other libraries look at beyond 64: figures at these compare with theirs.
COMMON = (ORDERS < 1.1) | np.isin(ORDERS, DEFAULT_RDP_ORDERS)
