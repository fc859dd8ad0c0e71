"""Where clipped sums are computed. Draws, charges and noise happen once, whatever computes them."""

from privada.execute.data_parallel import DataParallel, rank
from privada.execute.in_parts import InParts
from privada.execute.local import Local
from privada.query.executor import Draw, Execution, Executor

__all__ = ["DataParallel", "Draw", "Execution", "Executor", "InParts", "Local", "rank"]
