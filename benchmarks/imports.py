"""How long imports take, in fresh processes."""

import subprocess
import sys

from benchmarks.measure import interleaved, row


def run() -> list[dict[str, object]]:
    programs = {
        "import torch": "import torch",
        "import privada": "import privada",
        "import torch, privada.Trainer": "import torch, privada; privada.Trainer",
    }
    contenders = {
        name: lambda program=program: subprocess.run([sys.executable, "-c", program], check=True)
        for name, program in programs.items()
    }
    return [row("imports", interleaved(contenders, rounds=7), "import torch")]
