"""A SuperLink and three SuperNodes over TLS, with keys; one of them dies in a round."""

import re

import pytest
import torch

import privada as pv

pytest.importorskip("flwr", reason="Flower is not installed: the deployment is not tested")

from tests.federated.links import (
    flower,
    free_port,
    kill,
    listening,
    make_app,
    make_certificates,
    make_node_key,
    wait_for,
)

SLOW_CLIENT = """

_load = load_records


def load_records(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    import time
    from pathlib import Path

    with Path({folder!r}, f"asked-{{partition}}").open("a") as file:
        file.write("x")
    if partition == 2 and Path({folder!r}, "asked-2").read_text() == "xx":
        time.sleep(600)
    return _load(partition, partitions)
"""


@pytest.mark.slow
def test_a_node_that_dies_in_a_round_does_not_end_the_run(tmp_path):
    app = make_app(
        tmp_path / "hospitals", clients=3, clients_per_round=3, rounds=4, epsilon=1000.0, timeout=60
    )
    with (app / "hospitals" / "task.py").open("a") as task:
        task.write(SLOW_CLIENT.format(folder=str(tmp_path)))
    files = make_certificates(tmp_path)
    with flower(tmp_path) as link:
        link.connect(f'root-certificates = "{files["ca"]}"')
        link.start(
            "link", "flower-superlink", "--port", link.port,
            "--disable-runtime-dependency-installation", "--enable-supernode-auth",
            "--ssl-ca-certfile", files["ca"], "--ssl-certfile", files["server"],
            "--ssl-keyfile", files["key"],
        )  # fmt: skip
        wait_for(lambda: listening(link.port), lambda: link.log("link"))

        def join(name: str, partition: int, known: bool):
            private, public = make_node_key(tmp_path, name)
            if known:
                link.call("flwr", "supernode", "register", public, "link")
            return link.start(
                f"node-{name}", "flower-supernode", "--superlink", f"127.0.0.1:{link.port}",
                "--root-certificates", files["ca"], "--auth-supernode-private-key", private,
                "--port", free_port(), "--node-config",
                f"partition-id={partition} num-partitions=3",
            )  # fmt: skip

        nodes = [join(f"key-{k}", k, known=True) for k in range(3)]
        join("stranger", 9, known=False)

        def online():
            listed = link.call("flwr", "supernode", "list", "link", "--format", "json")
            return len(re.findall(r'"online"', listed)) == 3

        wait_for(online)
        link.start("run", "flwr", "run", app, "link", "--stream")

        def asked(partition: int) -> int:
            path = tmp_path / f"asked-{partition}"
            return len(path.read_text()) if path.exists() else 0

        wait_for(lambda: asked(2) == 2, lambda: link.log("run") + link.log("link"))
        kill(nodes[2])
        wait_for((app / "output" / "statement.txt").exists, lambda: link.log("run"))
        wait_for(lambda: "PRIVACY STATEMENT" in link.log("run"))
        said, refused = link.log("run"), link.log("node-stranger")
    assert "Connection attempt failed" in refused
    assert (asked(0), asked(1), asked(2), asked(9)) == (4, 4, 2, 0)
    assert re.search(r"ROUND 4/4", said)
    weights = torch.load(app / "output" / "model.pt")
    assert all(torch.isfinite(each).all() for each in weights.values())
    with pv.Ledger(app / "clients.ledger") as ledger:
        assert sum(ledger.totals().values()) == 4
        assert ledger.epsilon() <= 1000.0
