"""The budget a data owner grants."""

from dataclasses import dataclass

from privada.core.validation import positive, probability


@dataclass(frozen=True)
class Budget:
    """The most privacy loss that a data owner allows: (epsilon, delta).

    Guarantee: none by itself; it is a promise that the ledger keeps.

    Edge cases: epsilon must be finite and positive, delta strictly between 0 and 1. A delta of
    1 / n or more is accepted here and warned about where n is known.

    Example:
        >>> import privada as pv
        >>> pv.Budget(epsilon=1.0, delta=1e-5)
        Budget(epsilon=1.0, delta=1e-05)

    Reference: Dwork and Roth, The Algorithmic Foundations of Differential Privacy, Definition 2.4.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", probability("delta", self.delta))
