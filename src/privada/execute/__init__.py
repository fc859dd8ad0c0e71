"""Where clipped sums are computed. Draws, charges and noise happen once, whatever computes them."""

from privada.execute.in_parts import InParts
from privada.query.executor import Draw, Execution, Executor

__all__ = ["Draw", "Execution", "Executor", "InParts"]
