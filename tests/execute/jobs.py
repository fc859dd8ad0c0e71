"""What ranks do in the tests: `python -m tests.execute.jobs <job> <folder> ...`."""

import atexit
import contextlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import privada as pv
from privada.query.local import LocalExecutor
from tests.execute.cases import CASES, PERSONS, Buffered, X, Y, linear, network, outcome, trainer

RANK = pv.execute.rank()
TOGETHER = pv.execute.DataParallel(timeout=60)


def said(act):
    """Return the name and the words of what an act raises."""
    try:
        act()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def write(folder, what):
    """Write what was found; also before something that may end the process."""
    (folder / f"{RANK}.json").write_text(json.dumps(what))


class _Found(dict):
    """What was found, written whenever something is added: the process may end at any time."""

    def __init__(self, folder):
        super().__init__()
        self._folder = folder

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        write(self._folder, self)


def cases(folder, *names):
    """Take all steps of some cases, and write what each has come to on this rank."""
    found = {}
    for name in names or CASES:
        made = trainer(name, TOGETHER)
        made.step()  # by hand, and then the rest
        found[name] = outcome(made.fit())
    torch.save(found, folder / f"{RANK}.pt")


def several(folder):
    """Try in one process group what can go wrong without ending it; write what each has said."""
    found = _Found(folder)
    found["alone"] = said(lambda: trainer("weight decay", None))
    found["parts"] = said(lambda: trainer("weight decay", pv.execute.InParts(2)))
    # one run in each rank, which knows nothing of the others
    own = trainer("weight decay", pv.execute.Local(), seed=RANK).fit()
    found["local"] = [float(p.detach().sum()) for p in own.model.parameters()]
    found["other data"] = said(
        lambda: _with(
            data=lambda: (X + RANK * (np.arange(120) == 7)[:, None].astype(np.float32), Y)
        )
    )
    order = np.random.default_rng(RANK).permutation(len(X))
    found["other order"] = said(lambda: _with(data=lambda: (X[order], Y[order])))
    found["fewer rows"] = said(lambda: _with(data=lambda: (X[: 120 - RANK], Y[: 120 - RANK])))
    found["other groups"] = said(lambda: _with(groups=np.roll(PERSONS, RANK), batch_size=6))
    found["other seed"] = said(lambda: _with(seed=RANK))
    found["a seed on one rank"] = said(lambda: _with(seed=RANK or None))
    found["other clip"] = said(lambda: _with(method=lambda: pv.methods.DPSGD(lr=1, clip=1 + RANK)))
    found["other rate"] = said(lambda: _with(method=lambda: pv.methods.DPSGD(lr=1 + RANK)))
    found["other model"] = said(lambda: _with(model=linear if RANK else network))
    path = folder / "one.ledger"
    found["a ledger on one rank"] = said(lambda: _with(ledger=lambda: path if RANK else None))
    found["no ledger was made"] = not path.exists()
    broken = {
        "model": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))) if RANK else network
    }
    found["one cannot begin"] = said(lambda: _with(**broken))
    found["both cannot begin"] = said(lambda: _with(batch_size=1000))
    spent = pv.Ledger(None, pv.Budget(0.01, 1e-5))
    found["no budget"] = said(lambda: _with(ledger=lambda: spent))
    # the model starts from that of rank 0, frozen tensors and buffers too
    torch.manual_seed(RANK)
    made = trainer("buffers", TOGETHER, model=lambda: _fresh(Buffered))
    found["first model"] = [
        t.sum().item() for t in (*made.model.parameters(), *made.model.buffers())
    ]
    # a rank that fails in the middle: nothing is released, and all say so
    made = _with(steps=4)
    before = [p.detach().clone() for p in made.model.parameters()]
    with _failing_once(RANK == 1, lambda: (_ for _ in ()).throw(MemoryError("no room"))):
        found["a part fails"] = said(made.step)
    found["as it was"] = all(map(torch.equal, before, made.model.parameters()))
    found["charged"] = sum(made.ledger.totals().values())
    made.fit()
    found["goes on"] = [made.steps_done, sum(made.ledger.totals().values())]
    with _failing_once(RANK == 0, lambda: (_ for _ in ()).throw(MemoryError("no room"))):
        found["rank 0 fails"] = said(_with(steps=2).step)
    with _failing_once(RANK == 0, lambda: (_ for _ in ()).throw(pv.ModelError("It is broken."))):
        found["rank 0 finds a fault"] = said(_with(steps=2).step)
    # figures of a trainer on each rank
    ledger = folder / "budget.ledger"
    if RANK == 0:
        pv.Ledger(ledger, pv.Budget(1.0, 1e-5), dataset="people", kind="adaptive").close()
    torch.distributed.barrier()
    made = _with(seed=None, ledger=lambda: ledger, delta=1e-5, noise_multiplier=3.0, steps=6)
    made.step()
    found["private"] = made.statement().private
    if RANK == 0:
        other = pv.Ledger(ledger)
        from privada.accounting import events

        event = events.poisson(0.2, 3.0)
        other.charge({event: other.affordable(event, 10**6) - 2}, run="another")
    torch.distributed.barrier()
    found["exceeded"] = said(made.fit)
    found["steps before it"] = made.steps_done
    found["epsilon"] = made.epsilon()
    made.finish()
    found["text"] = str(made.statement())
    found["refused here"] = said(lambda: made.ledger.charge(events_of(made), run="sneaky"))
    found["query by itself"] = said(
        lambda: made.gradients.release(pv.preconditioning.isotropic(), 1.0)
    )
    found["private sums"] = repr(made._run.gradients.draw(0))
    # the checkpoint is that of rank 0
    made = _with(steps=6)
    made.step().step()
    made.save(folder / f"saved-{RANK}.pt")
    found["saved"] = (folder / f"saved-{RANK}.pt").exists()
    resumed = _with(
        steps=6,
        resume=folder / ("saved-0.pt" if RANK == 0 else "nowhere.pt"),
        ledger=lambda: made.ledger,
    )
    found["resumed"] = [resumed.steps_done, len(resumed.history)]
    found["no checkpoint"] = said(lambda: _with(steps=6, resume=folder / "nowhere.pt"))
    found["full disk"] = said(lambda: _with(steps=3).fit(checkpoint="/dev/full/never/here.pt"))
    # an ordinary loop
    torch.manual_seed(RANK)
    net = linear()
    loop = pv.PrivateLoop(
        net, torch.optim.Adam(net.parameters(), lr=0.1), nn.CrossEntropyLoss(), (X, Y), clip=0.5,
        batch_size=24, steps=4, noise_multiplier=1.0, delta=1e-3, seed=2, executor=TOGETHER,
    )  # fmt: skip
    model, optimizer, criterion, loader = loop
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
        if loop.steps_done == 4:
            break
    found["loop"] = [[float(p.detach().double().sum()) for p in net.parameters()], loop.epsilon()]
    for name, wrapped in {"ddp": _ddp, "sharded": _sharded, "partly sharded": _partly}.items():
        for how, execution in {"": TOGETHER, ", alone": pv.execute.Local()}.items():
            given = {"model": wrapped, "executor": execution}
            found[name + how] = said(lambda given=given: _with(**given))
    # queries besides are those of rank 0
    scaler = pv.PrivateScaler(epsilon=1.0, delta=1e-3, ledger=pv.Ledger(None))
    found["scaler"] = said(lambda: scaler.fit(np.random.default_rng(0).random((50, 2))))
    found["search"] = said(_search)
    # a model that one rank has changed
    made = _with(steps=3)
    if RANK == 1:
        with torch.no_grad():
            next(made.model.parameters()).add_(1.0)
    found["changed"] = said(made.step)
    found["other calls"] = said(made.step if RANK else made.fit)
    write(folder, found)


def _search():
    def recipe(lr):
        return pv.selection.Candidate(
            model=linear(), loss=nn.CrossEntropyLoss(), method=pv.methods.DPSGD(lr=lr),
            batch_size=24, steps=2,
        )  # fmt: skip

    pv.selection.select(recipe, (X, Y), space={"lr": [0.5, 1.0]}, budget=pv.Budget(2.0, 1e-3))


def events_of(made):
    return next(iter(made.planned()))


def _fresh(kind):
    torch.manual_seed(RANK)
    return kind()


def _ddp():
    return nn.parallel.DistributedDataParallel(network())


def _sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(network(), mesh=init_device_mesh("cpu", (2,)))


def _partly():
    made = nn.Sequential(nn.Linear(4, 4), _sharded())
    made[1].requires_grad_(False)  # all that is trained is whole
    return made


def _with(**changes):
    return trainer("weight decay", TOGETHER, **changes)


@contextlib.contextmanager
def _failing_once(here, fail):
    """Let the next sum of this rank's share fail, if it is this rank's turn."""
    kept = LocalExecutor.clipped_sum

    def failing(self, *arguments):
        LocalExecutor.clipped_sum = kept
        return fail()

    if here:
        LocalExecutor.clipped_sum = failing
    try:
        yield
    finally:
        LocalExecutor.clipped_sum = kept


def killed(folder, whom, number, how):
    """Train with a ledger and a checkpoint; one rank ends itself in the middle of a sum."""
    counted = [0]
    kept = LocalExecutor.clipped_sum

    def ending(self, *arguments):
        counted[0] += 1
        if int(whom) == RANK and counted[0] == int(number):
            (folder / "ended").touch()
            os.kill(os.getpid(), getattr(signal, how))
        return kept(self, *arguments)

    LocalExecutor.clipped_sum = ending
    error = said(
        lambda: whole(folder, timeout=5).fit(checkpoint=folder / "run.pt", checkpoint_steps=3)
    )
    write(folder, error)


def restarted(folder, whom):
    """Train; one rank ends itself in its fifth sum, unless torchrun has started it again."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        killed(folder, whom, "5", "SIGKILL")
        raise SystemExit(1)  # torchrun sees that there was an error, whichever rank it asks first
    resumed(folder)


def killed_anywhere(folder, steps):
    """Train for long, for others to kill at any moment."""
    write(folder, said(lambda: whole(folder, int(steps), timeout=20).fit(
        checkpoint=folder / "run.pt", checkpoint_steps=5)))  # fmt: skip


def resumed(folder, steps="12"):
    """Go on with what was killed, to its end."""
    made = whole(folder, int(steps))
    with contextlib.suppress(pv.BudgetExceeded):  # of a run that has paid for some steps twice
        made.fit(checkpoint=folder / "run.pt")
    made.finish()
    write(folder, [made.steps_done, made.epsilon(), sum(made.ledger.totals().values())])


def whole(folder, steps=12, timeout=60.0):
    """Return a private run with a ledger in a file, from its checkpoint if there is one."""
    at = folder / "run.pt"
    return trainer(
        "weight decay",
        pv.execute.DataParallel(timeout=timeout),
        seed=None,
        steps=steps,
        budget=pv.Budget(1.0, 1e-5),
        noise_multiplier=None,
        delta=None,
        ledger=lambda: folder / "people.ledger",
        resume=at if at.exists() else None,
        run="whole",
    )


def leaving(folder):
    """Write which threads of connections there are after a run, and when the process has left."""

    def threads():
        names = [(each / "comm").read_text().strip() for each in Path("/proc/self/task").iterdir()]
        return sum(name == "pt_gloo_runloop" for name in names)

    found = []
    atexit.register(lambda: write(folder, [*found, threads()]))  # which runs last
    trainer("weight decay", TOGETHER).fit()
    found.append(threads())


def interrupted(folder):
    """Interrupt rank 0 alone in the middle of a sum; it saves, and all ranks hear of it."""
    kept, counted = LocalExecutor.clipped_sum, [0]

    def interrupting(self, *arguments):
        counted[0] += 1
        if RANK == 0 and counted[0] == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return kept(self, *arguments)

    LocalExecutor.clipped_sum = interrupting
    try:
        whole(folder).fit(checkpoint=folder / "run.pt")
        write(folder, None)
    except BaseException as error:
        write(folder, [type(error).__name__, str(error)])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
