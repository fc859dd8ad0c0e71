"""What an accountant is: it says what a tally of events costs.

To add one, write one file with a class that has the members of `Accountant`, and let the suite in
tests/contracts/test_accountants.py run it. Its value can be given wherever a name can.
"""

from typing import Protocol, runtime_checkable

from privada.accounting.events import Tally


@runtime_checkable
class Accountant(Protocol):
    """Says what a tally of events costs: a small value that can be hashed and pickled.

    Guarantee, which the contract suite holds each accountant to: `epsilon` is an upper bound on the
    true epsilon at delta of running everything in the tally. It depends on its arguments alone, is
    the same in every process, and falls as delta or the noise grows, and rises with the counts, up
    to the tolerance of the accountant's numbers.
    """

    @property
    def name(self) -> str:
        """The short-hand, such as "pld"."""
        ...

    @property
    def description(self) -> str:
        """The accountant in words, for statements."""
        ...

    @property
    def slow(self) -> bool:
        """Whether a search over noise should start from an estimate, to ask less often."""
        ...

    def epsilon(self, tally: Tally, delta: float) -> float:
        """Return the epsilon at `delta` of everything in a tally; infinity where none is known.

        `epsilon_of` calls this. It has checked the arguments: the tally is not empty, its events
        are known and of one neighbouring relation, its counts are positive and come in an order
        that depends on the tally alone, none of its events may fail, and not all of them are
        Gaussian releases of which one has no noise.
        """
        ...

    def __hash__(self) -> int:
        """Equal accountants give equal answers, which are kept."""
        ...
