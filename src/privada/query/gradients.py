"""The gradient query: pay, draw, clip, add noise."""

import copy
from typing import Any

import torch
from dp_accounting import DpEvent

from privada import data
from privada.core.deprecation import renamed, renamed_argument
from privada.core.randomness import RandomSource
from privada.core.receipts import Receipt
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum, Release
from privada.mechanism import Mechanism
from privada.noise import NoiseStream
from privada.participation import Cyclic
from privada.preconditioning import DiagonalScaling, FlatScaling
from privada.query.account import Account, Ahead
from privada.query.executor import Draw, Executor
from privada.query.second_moments import SecondMomentQuery
from privada.query.turns import Turns


class GradientQuery:
    """Releases clipped sums of gradients at the model's current parameters.

    Its four acts are those of a step: `pay`, `draw`, `clipped_sum` and `add_noise`. `release` is
    all of them, in this order.

    Args:
        mechanism: who takes part, how gradients are bounded, and what a release is charged as.
        executor: where sums are computed.
        account: what pays.
        noise: what adds noise.
        sampling_rng: what units, their rows and micro-batches are drawn with.
        parameters: those of the model, that scalings are laid out over.
        units: which rows belong to one unit; by default each row is a unit.

    Guarantee: no release without its charge, which is durable before a record is read; every
    release passes `ClippedSum` and noise. A copy has an account of its own.

    Edge cases: an empty draw releases noise alone.

    Example:
        A trainer has made one:

        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3,
        ...     noise_multiplier=1.0, delta=1e-3,
        ... )
        >>> release = trainer.gradients.release(pv.preconditioning.isotropic(), 1.0)
        >>> release.value.shape, release.batch_size
        (torch.Size([3]), 10.0)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Algorithm 1.
    """

    def __init__(
        self,
        *,
        mechanism: Mechanism,
        executor: Executor,
        account: Account,
        noise: NoiseStream,
        sampling_rng: RandomSource,
        parameters: Parameters,
        units: data.Units | None = None,
    ) -> None:
        self.mechanism, self.executor, self.account = mechanism, executor, account
        self._noise, self._rng, self._parameters = noise, sampling_rng, parameters
        self._units: data.Units = data.RowUnits(mechanism.sampler.units) if units is None else units
        self._terms = mechanism.terms
        self._laid_out: tuple[DiagonalScaling, FlatScaling] | None = None
        sampler = mechanism.sampler
        self._turns = Turns(sampler, noise, sampling_rng) if isinstance(sampler, Cyclic) else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.account = copy.copy(self.account)  # a copy pays for itself
        if self._turns is not None:  # and has turns and noise of its own
            self._noise = copy.copy(self._noise)
            self._turns = self._turns.with_noise(self._noise)

    # ------------------------------------------------------------------ the four acts

    def pay(self, event: DpEvent, ahead: Ahead | None = None, number: int = 0) -> Receipt:
        """Return the receipt of one release, charged as an event of the mechanism, durably.

        `ahead` says what the next releases will be, so that charges can be made in small blocks.
        `number` is as for `draw`. Where units take part in turns, an event pays for a turn of all
        parts, and is charged with the first of its releases; the others have the same noise. Now
        and then, the model is first tried on other dummy examples.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        self.executor.recheck()
        if self._turns is None:
            return self.account.pay(event, ahead=ahead)
        return self._turns.pay(number, event, self.account, ahead)

    def paid_until(self, number: int) -> int:
        """Return up to which release all are paid for, given that those up to `number` are made."""
        return number if self._turns is None else self._turns.paid_until(number)

    def draw(self, number: int) -> Draw:
        """Return the rows that take part in a release. Private: never shown.

        `number` says which one of the run's releases it is, for those who take part in turns.
        """
        mechanism = self.mechanism
        if self._turns is None:
            drawn = mechanism.sampler.draw(number, self._rng)
        else:
            drawn = self._turns.draw(number)
        if self._units.grouped:
            rows, owners = self._units.rows(drawn, self._rng)
            return Draw(rows, None if owners is None else torch.from_numpy(owners))
        if mechanism.clipping.size is None:
            return Draw(drawn)
        groups = mechanism.clipping.assign_microbatches(drawn.size, mechanism.batch_size, self._rng)
        return Draw(drawn, groups)

    def clipped_sum(self, drawn: Draw, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the scaled gradients of a draw, each bounded by the clip norm."""
        return self.executor.clipped_sum(drawn, scaling, clip)

    def add_noise(self, clipped: ClippedSum, receipt: Receipt) -> Release:
        """Return the clipped sum with the noise that was paid for."""
        return self._noise.release(clipped, receipt, self._terms)

    # ------------------------------------------------------------------ all of them

    def lay_out(self, preconditioner: DiagonalScaling) -> FlatScaling:
        """Return a scaling laid out over the model's parameters; that of the last one is kept."""
        if self._laid_out is None or self._laid_out[0] is not preconditioner:
            self._laid_out = preconditioner, preconditioner.on(self._parameters)
        return self._laid_out[1]

    def release(
        self, preconditioner: DiagonalScaling, noise_multiplier: float, number: int = 0
    ) -> Release:
        """Return a release of the clipped sum of gradients at the model's current parameters.

        Args:
            preconditioner: what gradients are scaled by before they are clipped.
            noise_multiplier: the noise's standard deviation over the sensitivity.
            number: which one of the run's releases it is. Where units take part in turns, each call
                pays for a turn of all parts.

        Returns:
            The release, with its scaling undone where the preconditioner says so.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        event = self.mechanism.event(positive("noise_multiplier", noise_multiplier))
        scaling = self.lay_out(preconditioner)
        if self._turns is not None:
            self._turns.end()  # what is left of a turn may have other noise
        receipt = self.pay(event, number=number)
        drawn = self.draw(number)
        clipped = self.clipped_sum(drawn, scaling, self.mechanism.clip)
        return preconditioner.restore(self.add_noise(clipped, receipt), scaling)

    @renamed_argument("geometry", "preconditioner")
    def query(
        self, preconditioner: DiagonalScaling, noise_multiplier: float, number: int = 0
    ) -> Release:
        """Return what `release` does; its former name."""
        renamed("Gate.query", "GradientQuery.release")
        return self.release(preconditioner, noise_multiplier, number)

    def squares(self, bound: float, noise_multiplier: float, population: float) -> Release:
        """Return a release of bounded squares over all units; `SecondMomentQuery` does that now."""
        renamed("Gate.squares", "SecondMomentQuery.release")
        query = SecondMomentQuery(
            executor=self.executor,
            account=self.account,
            noise=self._noise,
            rng=self._rng,
            population=population,
        )
        return query.release(bound, noise_multiplier)

    def settle(self) -> None:
        """Return the charges that were reserved and not used; the former way to say it."""
        renamed("Gate.settle", "GradientQuery.account.refund_unused")
        self.account.refund_unused()
