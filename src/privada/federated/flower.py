"""Federated training on Flower: a strategy for the server, and a mod for the clients."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any, NoReturn

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app import MessageType as Kind
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from privada.accounting import Statement
from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.core.validation import integer, positive, shown
from privada.federated.clients import update_from
from privada.federated.trainer import FederatedTrainer
from privada.methods import Method


class FlowerClients:
    """The nodes of a Flower grid, one client each.

    Args:
        model: what is sent to them.
        size: the public number of clients.
        arrays, config: the names of the records in a message.

    Guarantee: of what nodes send, at most one update a node and round is used, and only from nodes
    that were asked in this very round. No node can answer for another: each message has a secret of
    its own. Reading a reply never raises. What a node gets tells of other nodes by the model alone.

    Edge cases: a node has its place from the first time that it is seen, for as long as the process
    lives. Nodes beyond `size` have places as well.
    """

    def __init__(self, model: nn.Module, size: int, arrays: str, config: str) -> None:
        self.size = integer("clients", size)
        self._model, self._arrays, self._config = model, arrays, config
        self.grid: Grid | None = None
        self.settings: dict[str, Any] = {}
        self.timeout, self.round = 3600.0, 1
        self._place: dict[int, int] = {}
        self._connected: list[int] = []

    def places(self) -> int:
        """Return how many places were ever given, after giving one to each new node."""
        self._connected = sorted(self._reached().get_node_ids())
        for node in self._connected:
            self._place.setdefault(node, len(self._place))
        return len(self._place)

    def updates(self, places: Sequence[int] | None, parameters: Parameters) -> Iterator[Tensor]:
        """Ask the drawn nodes, and yield what they made of the model, by the number of the node.

        They are those that were connected when `places` was last called, which a draw does.
        """
        grid = self._reached()
        asked = {*(range(self.places()) if places is None else places)}
        nodes = [node for node in self._connected if self._place[node] in asked]
        if not nodes:
            return
        start, tokens = parameters.read(), {os.urandom(16).hex(): node for node in nodes}
        replies = grid.send_and_receive(self._messages(tokens), timeout=self.timeout)
        found: dict[int, Tensor | None] = {}
        for reply in replies:
            node = _sender(reply, tokens)
            if node is not None and node not in found:
                found[node] = _update(reply, parameters, start)
        yield from (update for _, update in sorted(found.items()) if update is not None)

    def _reached(self) -> Grid:
        if self.grid is None:
            raise ArgumentError(
                "Expected a grid to ask clients through. Call strategy.start(grid)."
            )
        return self.grid

    def _messages(self, tokens: dict[str, int]) -> list[Message]:
        content = RecordDict(
            {
                self._arrays: ArrayRecord(torch_state_dict=self._model.state_dict()),
                self._config: ConfigRecord({**self.settings, "server-round": self.round}),
            }
        )
        return [
            Message(content, node, Kind.TRAIN, group_id=token) for token, node in tokens.items()
        ]


def _sender(reply: Message, tokens: dict[str, int]) -> int | None:
    """Return the node that a reply is counted for, None if it was not asked in this round.

    A reply carries back the secret of the message that it answers. Each message has one of its
    own, so that a node cannot answer for another, whatever number it gives as its own.
    """
    node = tokens.get(reply.metadata.group_id)
    return node if reply.metadata.src_node_id == node else None


def _update(reply: Message, parameters: Parameters, start: Tensor) -> Tensor | None:
    """Return the update in a reply, None if it is of another form."""
    try:
        if reply.has_error():
            return None
        (arrays,) = reply.content.array_records.values()
        layout = parameters.layout
        made = {name: torch.from_numpy(arrays[name].numpy()) for name in layout.names}
        # what the array says of itself may be anything
        if any(
            made[name].shape != shape or made[name].dtype != parameters.dtype
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        ):
            return None
        return update_from(start, layout.join(made))
    except Exception:  # whatever a client sends
        return None


def update_only(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Send back the trained arrays and nothing else: a mod for the ClientApp.

    Metrics such as the loss or the number of records stay on the client, and so do the words of an
    exception: a client that fails answers with nothing. Evaluation is not answered at all, since
    its figures would be a look that nobody pays for.

    Guarantee: it is a courtesy to the client. The promise of `PrivateStrategy` does not rest on it.

    Example:
        >>> import privada as pv
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[pv.federated.update_only])
    """
    content = RecordDict()
    if message.metadata.message_type == Kind.TRAIN:
        try:
            reply = call_next(message, context)
            if not reply.has_error():
                content = RecordDict(dict(reply.content.array_records))
        except Exception:
            content = RecordDict()
    return Message(content, reply_to=message)


class PrivateStrategy(Strategy):
    """A Flower strategy that trains with privacy for each client, and keeps the bill.

    It takes the place of FedAvg, FedAdam and the like in a ServerApp; the ClientApp stays as it is.

    Args:
        model: what is trained; its state is what clients get.
        clients: the public number of clients, which sets the sampling rate.
        method: how the server uses the noisy mean of updates: `pv.methods.DPSGD(lr=1.0)` is
            DP-FedAvg, `DPMomentum` FedAvgM, `DPAdam` FedAdam, `DPAdaGrad` FedAdagrad.
        batch_size: the expected number of clients in a round.
        rounds: how many steps to take.
        checkpoint: a file to save to after every round, and to go on from after a crash.
        weighted_by_key: Flower's name for weights; anything but None is refused.
        arrayrecord_key, configrecord_key: as for FedAvg.
        **settings: budget, noise_multiplier, delta, ledger, sampling, seed, unit, run,
            weight_decay, public_term, loss, validation and stopping, as for
            `pv.federated.FederatedTrainer`.

    Guarantee: that of `FederatedTrainer`. Each client is drawn by its own coin; a round is charged
    before its messages are sent. A client that is missing, late, broken or lying, sends twice or
    for another round, can neither end a round nor move it by more than the clip norm.

    Edge cases: rounds without clients add noise alone. If more nodes than `clients` connect, each
    takes part at the same rate. A round that a crash of the server has cut
    off stays charged, and the run ends that much earlier. Clients are not evaluated, since that
    would be a look that nobody pays for; the server evaluates models on the public records of
    `validation`, and `evaluate_fn` gets them too.

    Example:
        >>> import privada as pv, torch
        >>> strategy = pv.federated.PrivateStrategy(
        ...     torch.nn.Linear(2, 1), clients=1000, method=pv.methods.DPSGD(lr=1.0, clip=0.5),
        ...     batch_size=50, rounds=100, budget=pv.Budget(epsilon=4.0, delta=1e-4),
        ... )
        >>> round(strategy.trainer.noise_multiplier, 2)
        0.86

    Reference: McMahan et al. (2018), Learning Differentially Private Recurrent Language Models,
    arXiv 1710.06963, Algorithm 1.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clients: int,
        method: Method,
        batch_size: float,
        rounds: int,
        checkpoint: str | os.PathLike[str] | None = None,
        weighted_by_key: str | None = None,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        **settings: Any,
    ) -> None:
        _check(method, weighted_by_key, settings)
        self._clients = FlowerClients(model, clients, arrayrecord_key, configrecord_key)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        resumed = self._checkpoint is not None and self._checkpoint.exists()
        self.trainer = FederatedTrainer(
            model,
            self._clients,
            method=method,
            batch_size=batch_size,
            rounds=rounds,
            resume=self._checkpoint if resumed else None,
            **settings,
        )

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger."""
        return self.trainer.epsilon(delta)

    def statement(self) -> Statement:
        """Return what was promised so far, what it cost and what it rests on."""
        return self.trainer.statement()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Take all rounds that are left; return the last model, and its figures on public data.

        Each evaluation on the records of `validation` is logged, with its baselines.

        Args:
            grid: where the clients are.
            initial_arrays: what the model starts from, by default what it is; a run that goes on
                from its checkpoint starts from that.
            num_rounds: None, or what `rounds` is: the noise was calibrated to that.
            timeout: for how many seconds a round waits for its clients.
            train_config: what clients get beside the model.
            evaluate_config: must be None, see above.
            evaluate_fn: a function of the number of a round and the model, for public data.
        """
        trainer, result = self.trainer, Result()
        if num_rounds not in (None, trainer.steps):
            raise ArgumentError(
                f"Expected num_rounds to be left out or {trainer.steps}, as the strategy was made, "
                f"got num_rounds={shown(num_rounds)}. The noise depends on it: give it as rounds=."
            )
        if evaluate_config is not None:
            raise ArgumentError(
                "Expected evaluate_config=None, got one: the figures of clients would be a look "
                "that nobody pays for. Evaluate on public data by validation= or evaluate_fn."
            )
        self._clients.timeout = positive("timeout", timeout)
        self._clients.settings = dict(train_config or {})
        if initial_arrays is not None and trainer.steps_done == 0:
            trainer.model.load_state_dict(initial_arrays.to_torch_state_dict())
        self._clients.grid = grid
        told = len(trainer.evaluations)
        try:
            self._evaluate(evaluate_fn, result)
            while not trainer.finished and trainer.steps_done < trainer.expected_steps:
                log(INFO, "[ROUND %s/%s]", trainer.steps_done + 1, trainer.steps)
                if self._checkpoint is not None and not self._checkpoint.exists():
                    trainer.save(self._checkpoint)  # to go on from if the first round is cut off
                self._clients.round = trainer.steps_done + 1
                trainer.step()
                if self._checkpoint is not None:
                    trainer.save(self._checkpoint)
                told = self._tell(told)
                self._evaluate(evaluate_fn, result)
            if trainer.finished and trainer.steps_done < trainer.steps:
                log(INFO, "The run ended early, by the scores of its validation.")
            elif trainer.steps_done < trainer.steps:
                log(INFO, "A crash has cost some rounds, which were charged: the budget ends here.")
                trainer.finish()
                self._tell(told)
        finally:
            self._clients.grid = None
        result.arrays = self._arrays()
        for each in trainer.evaluations:
            _add(result, each.step, each.values)
        return result

    def _tell(self, told: int) -> int:
        """Log the evaluations that were not logged yet; return how many there are."""
        for each in self.trainer.evaluations[told:]:
            figures = (
                f"{name} {value:.4f}"
                + (f" (baseline {each.baselines[name]:.4f})" if name in each.baselines else "")
                for name, value in each.values.items()
            )
            log(INFO, "\tvalidation: %s", ", ".join(figures))
        return len(self.trainer.evaluations)

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord(torch_state_dict=self.trainer.model.state_dict())

    def _evaluate(
        self,
        evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        if evaluate is None:
            return
        found = evaluate(self.trainer.steps_done, self._arrays())
        if found is not None:
            _add(result, self.trainer.steps_done, found)

    def summary(self) -> None:
        """Log what the run does and promises."""
        for line in str(self.statement()).splitlines():
            log(INFO, "\t%s", line)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse: `start` runs the rounds, since they are charged and drawn in one place."""
        _only_start()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse: `start` runs the rounds."""
        _only_start()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: the figures of clients would be a look that nobody pays for."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing, for the same reason."""
        return None


def _add(result: Result, step: int, figures: Mapping[str, Any]) -> None:
    """Add figures to what was found of a model, beside those that are there."""
    found: Mapping[str, Any] = result.evaluate_metrics_serverapp.get(step, {})
    result.evaluate_metrics_serverapp[step] = MetricRecord({**found, **figures})


def _only_start() -> NoReturn:
    raise ArgumentError(
        "Expected a private strategy to be run by its start(grid), which charges, draws and adds "
        "noise, got a call of one of its parts. Do not wrap it in another strategy."
    )


def _check(method: Any, weighted_by_key: Any, settings: dict[str, Any]) -> None:
    if isinstance(method, Strategy):
        raise ArgumentError(
            f"Expected method to be one of pv.methods, got method={shown(method)}, which weighs "
            "clients by what they say and draws a fixed number of them. Use pv.methods.DPSGD(lr=1) "
            "for FedAvg, DPMomentum for FedAvgM, DPAdam for FedAdam, DPAdaGrad for FedAdagrad."
        )
    if weighted_by_key is not None:
        raise ArgumentError(
            f"Expected weighted_by_key=None, got weighted_by_key={shown(weighted_by_key)}. All "
            "clients count alike: with weights of their own one could move the sum by any amount, "
            "and the weights are private."
        )
    if "resume" in settings:
        raise ArgumentError(
            "Expected no resume, got one. Give checkpoint=, which goes on by itself."
        )
