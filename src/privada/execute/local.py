"""Sums in this process alone, said in so many words."""

from dataclasses import dataclass

from privada.core.ranks import Ranks
from privada.query.executor import Executor


@dataclass(frozen=True)
class Local:
    """Computes the sums of a run in this process alone, each batch as a whole.

    That is the default in one process. Under torchrun it has to be said: each rank then has a run
    of its own, which draws its own batches, is charged for itself and trains its own model.

    Guarantee: that of `pv.Trainer`, for each run.

    Example:
        >>> import privada as pv
        >>> pv.execute.Local().describe()
        'in this process alone'
    """

    def join(self) -> Ranks | None:
        """Return that there is nobody else."""
        return None

    def over(self, local: Executor) -> Executor:
        """Return the executor of this process."""
        return local

    def describe(self) -> str:
        """Return it in words."""
        return "in this process alone"
