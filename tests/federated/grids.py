"""A Flower grid in this process: messages go to ClientApps, and replies can be tampered with."""

import os
from collections.abc import Callable, Iterable
from copy import deepcopy
from types import SimpleNamespace

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[list[Message]], list[Message]]


class InProcessGrid(Grid):
    """Nodes 100, 101, ... that all run one ClientApp."""

    def __init__(self, app: ClientApp, nodes: int, tamper: Tamper = list) -> None:
        self.app, self.nodes, self.tamper = app, [100 + k for k in range(nodes)], tamper
        self.asked: list[list[int]] = []

    run = property(lambda self: SimpleNamespace(run_id=1))

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        sent = list(messages)
        self.asked.append([each.metadata.dst_node_id for each in sent])
        return self.tamper([self._answer(each) for each in sent])

    def context(self, node: int) -> Context:
        """Return what a node knows of itself."""
        return Context(1, node, {"partition-id": node - 100}, RecordDict(), {})

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        message = Message(deepcopy(message.content), metadata=message.metadata)  # as over a wire
        message.metadata.__dict__["_message_id"] = os.urandom(8).hex()
        reply = self.app(message, self.context(node))
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make messages, which Flower allows within a run alone."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
