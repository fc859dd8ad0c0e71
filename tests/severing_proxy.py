"""A proxy before a server that cuts a connection at a chosen moment."""

import contextlib
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.forks import PATIENCE


@dataclass(frozen=True)
class Cut:
    """When to cut.

    Attributes:
        word: of the client, by which the moment is told.
        forward: whether the server gets it, after so many seconds; None for never.
        answered: whether to wait until the server has answered; the client never gets it.
        linger: for how long the server does not notice.
    """

    word: bytes
    forward: float | None = None
    answered: bool = False
    linger: float = 0.0


class Proxy:
    """Forwards connections to a port of this machine, until it is told to cut the next one."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._cut: Cut | None = None
        self._chance: Callable[[], bool] = lambda: False
        self.refusing = False
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self, cut: Cut) -> None:
        """Cut at the next moment of that kind, once."""
        self._cut = cut

    def cut_at_random(self, generator: random.Random, share: float) -> None:
        """Cut before a share of the packets, in either direction."""
        self._chance = lambda: generator.random() < share

    def calm(self) -> None:
        """Cut nothing more."""
        self._cut, self._chance = None, lambda: False

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refusing:
                    client.close()
                    continue
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        to = "127.0.0.1", self._to
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(to, PATIENCE) as server,
            selectors.DefaultSelector() as ready,
        ):
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while self._pass(ready, client, server):
                pass

    def _pass(
        self, ready: selectors.BaseSelector, client: socket.socket, server: socket.socket
    ) -> bool:
        """Forward what has come; return whether to go on."""
        for key, _ in ready.select(PATIENCE):
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if not data:
                return False
            cut = self._cut
            if key.fileobj is client and cut is not None and cut.word in data:
                self._cut, self.cuts = None, self.cuts + 1
                self._sever(cut, data, client, server)
                return False
            if self._chance():
                self.cuts += 1
                return False
            key.data.sendall(data)
        return True

    def _sever(self, cut: Cut, data: bytes, client: socket.socket, server: socket.socket) -> None:
        if not cut.answered:
            client.close()
        if cut.forward is not None:
            time.sleep(cut.forward)
            server.sendall(data)
            if cut.answered:
                server.recv(1 << 16)
        time.sleep(cut.linger)
