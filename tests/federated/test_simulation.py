"""The app that `privada federated new` writes, in Flower's simulation engine, on Ray."""

import re

import pytest

import privada as pv

pytest.importorskip("flwr", reason="Flower is not installed: the simulation is not tested")

from tests.federated.links import flower, kill_all, listening, make_app, wait_for


@pytest.mark.slow
def test_the_new_app_learns_and_charges(tmp_path):
    app = make_app(tmp_path / "digits", rounds=10, clients_per_round=60, clients=120)
    with flower(tmp_path) as link:
        link.connect("insecure = true")
        link.start("link", "flower-superlink", "--insecure", "--simulation",
                   "--disable-runtime-dependency-installation", "--port", link.port)  # fmt: skip
        wait_for(lambda: listening(link.port), lambda: link.log("link"))
        command = ("flwr", "run", app, "link", "--stream", "--federation-config")
        said = link.call(*command, "num-supernodes=120")
        again = link.call(*command, "num-supernodes=120")
    (accuracy,) = re.findall(r"Accuracy on public records: ([\d.]+)", said)
    assert float(accuracy) > 0.7
    assert (app / "output" / "statement.txt").read_text().strip() in said
    with pv.Ledger(app / "clients.ledger") as ledger:
        assert sum(ledger.totals().values()) == 10
        assert ledger.epsilon() <= 8.0
    assert "ROUND" in said
    assert "ROUND" not in again  # a run that has ended is not paid for again
    assert f"Accuracy on public records: {accuracy}" in again


@pytest.mark.slow
def test_a_server_that_is_killed_in_a_round_goes_on_where_it_was(tmp_path):
    """The SuperLink, the ServerApp and the nodes get SIGKILL; the app is started again."""
    app = make_app(tmp_path / "digits", rounds=8, clients_per_round=15, clients=30)
    with flower(tmp_path) as link:
        link.connect("insecure = true")

        def serve():
            started = link.start("link", "flower-superlink", "--insecure", "--simulation",
                                 "--disable-runtime-dependency-installation",
                                 "--port", link.port)  # fmt: skip
            wait_for(lambda: listening(link.port), lambda: link.log("link"))
            return started

        def paid():
            if not (app / "clients.ledger").exists():
                return 0
            with pv.Ledger(app / "clients.ledger") as ledger:
                return sum(ledger.totals().values())

        server = serve()
        run = ("flwr", "run", app, "link", "--stream", "--federation-config", "num-supernodes=30")
        link.start("run", *run)
        wait_for(lambda: paid() >= 3, lambda: link.log("run") + link.log("link"))
        kill_all(server)
        before = paid()
        serve()
        said = link.call(*run)
    (first,) = re.findall(r"ROUND (\d)/8", said)[:1]
    assert 2 <= int(first) <= before + 1
    assert "Accuracy on public records" in said
    with pv.Ledger(app / "clients.ledger") as ledger:
        assert sum(ledger.totals().values()) == 8  # those that were lost are in it
        assert ledger.epsilon() <= 8.0
