"""What ranks do in the tests: `python -m tests.execute.jobs <job> <folder> ...`."""

import sys
import warnings
from pathlib import Path

import torch

import privada as pv
from tests.execute.cases import CASES, outcome, trainer

RANK = pv.execute.rank()
TOGETHER = pv.execute.DataParallel(timeout=60)


def cases(folder, *names):
    """Take all steps of some cases, and write what each has come to on this rank."""
    found = {}
    for name in names or CASES:
        made = trainer(name, TOGETHER)
        made.step()  # by hand, and then the rest
        found[name] = outcome(made.fit())
    torch.save(found, folder / f"{RANK}.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
