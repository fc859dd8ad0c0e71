"""Noise on the device: a mod that bounds an update, pays for it and adds noise before it leaves."""

import os
from collections.abc import Callable
from functools import partial
from logging import ERROR, INFO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app import MessageType as Kind
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log
from torch import Tensor

from privada.accounting import Budget, Ledger, epsilon_of
from privada.accounting.calibration import least_noise
from privada.accounting.ledger import PLANNED
from privada.core.errors import ArgumentError, BudgetExceeded
from privada.core.silence import pass_on_signals
from privada.core.validation import integer, positive, probability, shown
from privada.core.values import Release
from privada.query.updates import UpdateQuery, update_event

_Place = str | os.PathLike[str]
# the names of Flower's records before its Message API, which SecAgg+ still uses
_OLD_REQUEST, _OLD_REPLY = "fitins.parameters", "fitres"


class DeviceNoise:
    """A mod for the ClientApp that makes every update private before it leaves the device.

    With local steps divided by A (`LocalSGD(preconditioner=)`) and FedAvg at the server, this is
    AdaDPS's Algorithm 3 as it is printed:

        update <- clip(update, C) + N(0, (noise_multiplier C)^2)

    The server is not trusted, so the device itself keeps the account, on a ledger of its own, and
    any strategy may follow: FedAvg, FedAdam, or Flower's SecAgg+.

    Args:
        clip: the clip norm C.
        releases: how many updates this device will ever send.
        ledger: a file on the device, or a function of Flower's context that names one.
        budget: what all of these updates may cost; the noise is calibrated to it.
        noise_multiplier, delta: instead of a budget, the noise as in Algorithm 3, and the delta at
            which it is priced.
        run: the name under which updates are charged.

    Guarantee: all that the device ever sends is (epsilon, delta)-differentially private against
    everybody, the server too, for replacing all of its records by any others. Replacing moves a
    clipped update by up to 2 C, so that one update costs a Gaussian release with half the noise
    multiplier. Nothing is gained by sampling, since the server knows whom it asks. An update is
    charged before the client's code runs.

    Edge cases: a client that fails, or whose update is not finite or of another form, sends noise
    alone, so that failing tells nothing. When all updates are sent, or the ledger cannot be
    written, replies are empty. Metrics and evaluation are not answered. How long local training
    takes is not hidden. Flower sends the app's code with a run: a device that does not trust its
    operator has to check that code, as Flower's `--trusted-entities` do.

    Example:
        >>> import privada as pv
        >>> noise = pv.federated.DeviceNoise(
        ...     clip=1.0, releases=10, ledger="device.ledger", budget=pv.Budget(8.0, 1e-5)
        ... )
        >>> round(noise.noise_multiplier, 2), round(noise.epsilon, 2)
        (3.8, 8.0)
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[noise])

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 3, lines 7 and 8.
    """

    def __init__(
        self,
        *,
        clip: float,
        releases: int,
        ledger: _Place | Callable[[Context], _Place],
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        run: str = "federated training",
    ) -> None:
        self.clip, self.releases = positive("clip", clip), integer("releases", releases)
        self._ledger, self._run, self._budget = ledger, run, budget
        if (budget is None) == (noise_multiplier is None):
            raise ArgumentError(
                f"Expected either budget or noise_multiplier, got budget={shown(budget)} and "
                f"noise_multiplier={shown(noise_multiplier)}."
            )
        if noise_multiplier is not None:
            self.delta = probability("delta", delta)
            self.noise_multiplier = positive("noise_multiplier", noise_multiplier)
        elif budget is not None:
            self.delta = budget.delta
            self.noise_multiplier = least_noise(self._price, budget.epsilon, str(budget))
        self.epsilon = self._price(self.noise_multiplier)

    def _price(self, noise_multiplier: float) -> float:
        return epsilon_of({update_event(noise_multiplier): self.releases}, self.delta)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a request to train by a noisy update, and any other by nothing."""
        content = RecordDict()
        if message.metadata.message_type == Kind.TRAIN and len(message.content.array_records) == 1:
            # a copy: what the client's code changes in place is part of the update
            ((name, start),) = _arrays(message.content).items()
            train = partial(self._update, message, context, call_next, start)
            release = self._release(train, context)
            if release is not None:
                content = _reply(name, start, release.value)
        return Message(content, reply_to=message)

    def _release(self, train: Callable[[], Tensor], context: Context) -> Release | None:
        """Return one update with noise; None if all are sent, or the ledger cannot be charged."""
        try:
            place = self._ledger(context) if callable(self._ledger) else self._ledger
            with Ledger(place, self._budget, kind=PLANNED) as ledger:
                query = UpdateQuery(
                    ledger, self.clip, self.noise_multiplier, self.releases, self._run
                )
                return query.release(train)
        except BudgetExceeded:
            log(INFO, "This device has sent all %s updates of its budget.", self.releases)
        except Exception as error:  # which stays here: a reply must not tell of it
            log(ERROR, "No update was sent, since it cannot be charged: %s", error)
        return None

    def _update(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        start: dict[str, np.ndarray],
    ) -> Tensor:
        """Return what local training changed, as one vector; zero if it failed."""
        floats = {name: value for name, value in start.items() if value.dtype.kind == "f"}
        zero = torch.zeros(sum(value.size for value in floats.values()))
        try:
            ((_, made),) = _arrays(call_next(message, context).content).items()
            if any(made[name].shape != value.shape for name, value in floats.items()):
                raise ArgumentError("Expected arrays of the shapes that were sent.")
            parts = [
                np.ravel(made[name].astype(np.float64) - value) for name, value in floats.items()
            ]
            return torch.from_numpy(np.concatenate(parts)).float() if parts else zero
        except BaseException as error:  # whose words stay here
            log(ERROR, "Local training failed; noise alone was sent: %r", error)
            pass_on_signals(error)
            return zero


def _arrays(content: RecordDict) -> dict[str, dict[str, np.ndarray]]:
    """Return copies of the arrays of all records, by their names."""
    return {
        name: {key: np.array(array.numpy()) for key, array in record.items()}
        for name, record in content.array_records.items()
    }


def _reply(name: str, start: dict[str, np.ndarray], update: Tensor) -> RecordDict:
    """Return the model with an update, in the form that a server expects, and a weight of 1."""
    made, taken = {}, 0
    for key, value in start.items():
        if value.dtype.kind == "f":
            part = update[taken : taken + value.size].numpy().reshape(value.shape)
            made[key], taken = Array((value + part).astype(value.dtype)), taken + value.size
        else:
            made[key] = Array(value)
    if name != _OLD_REQUEST:
        weight = MetricRecord({"num-examples": 1})
        return RecordDict({name: ArrayRecord(made), "metrics": weight})
    return RecordDict(
        {
            f"{_OLD_REPLY}.parameters": ArrayRecord(made),
            f"{_OLD_REPLY}.num_examples": MetricRecord({"num_examples": 1}),
            f"{_OLD_REPLY}.metrics": ConfigRecord({}),
            f"{_OLD_REPLY}.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )
