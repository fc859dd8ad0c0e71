"""The moments accountant, as the first papers used it."""

from dataclasses import dataclass

from privada.accounting import rdp
from privada.accounting.accountants.renyi import total_divergence
from privada.accounting.events import Tally


@dataclass(frozen=True)
class MomentsAccountant:
    """Whole moments 1 to 32 with the first conversion, for comparison with old tables.

    Guarantee: an upper bound. Looser than the others.

    Example:
        >>> from privada.accounting import MomentsAccountant, epsilon_of, events
        >>> round(epsilon_of({events.poisson(0.01, 4.0): 10_000}, 1e-5, MomentsAccountant()), 2)
        1.26

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Theorem 2.
    """

    @property
    def name(self) -> str:
        """Its name as a short-hand."""
        return "moments"

    @property
    def description(self) -> str:
        """Its name in words."""
        return "the moments accountant"

    @property
    def slow(self) -> bool:
        """An answer takes microseconds."""
        return False

    def epsilon(self, tally: Tally, delta: float) -> float:
        """Return the epsilon of the best moment."""
        return rdp.moments_epsilon(total_divergence(tally), delta)
