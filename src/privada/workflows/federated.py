"""A new Flower app with privacy for each client."""

import keyword
import re
from importlib.resources import files
from pathlib import Path

from privada.core.errors import ArgumentError
from privada.tables.files import write_text

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Federated training with differential privacy for each client"
license = {{ text = "Apache-2.0" }}
# Flower and Privada are those of the environment in which SuperLink and SuperNodes run.
dependencies = []

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
# The public number of clients, and how many of them a round asks on average.
clients = 200
clients-per-round = 100
rounds = 30
epsilon = 8.0
delta = 1e-3
# Everything that is learnt from these clients belongs on one ledger. SuperLink runs the server in
# a folder of its own choice: full paths only.
ledger = "{folder}/clients.ledger"
output = "{folder}/output"
clip = 1.0
lr = 1.0
local-lr = 0.5
local-epochs = 2
# Rounds between two evaluations on the public records of the server.
evaluate-every = 5
# Seconds that a round waits for its clients.
timeout = 60
"""


def new_federated_app(folder: str | Path) -> list[Path]:
    """Write a Flower app that trains with privacy for each client.

    It has a pyproject.toml with the settings, a server, a client and the task: handwritten digits
    that ship with scikit-learn, divided among the clients.

    Args:
        folder: a new folder, whose name becomes that of the app.

    Returns:
        The files, of which `task.py` is the one to change.

    Edge cases: a folder that exists is refused, and so is a name that is no Python package.

    Example:
        >>> import privada.workflows as workflows
        >>> [path.name for path in workflows.new_federated_app("hospitals")]
        ['pyproject.toml', '__init__.py', 'client_app.py', 'server_app.py', 'task.py']
    """
    folder = Path(folder).absolute()
    package = folder.name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", folder.name) or keyword.iskeyword(
        package
    ):
        raise ArgumentError(
            f"Expected a folder whose name is lower-case letters, digits and single dashes, as "
            f"the app's name becomes that of a Python package, got {folder.name!r}."
        )
    if any(sign in str(folder) for sign in '"\\\n'):
        raise ArgumentError(
            f"Expected a path without quotes, backslashes and line breaks, got {str(folder)!r}: it "
            "is written into pyproject.toml."
        )
    try:
        folder.mkdir()
        (folder / package).mkdir()
    except OSError as error:
        raise ArgumentError(
            f"Cannot make the folder {str(folder)!r}: {error.strerror}. Give a new one, in a "
            "folder that exists and may be written."
        ) from error
    texts = {
        folder / "pyproject.toml": _PROJECT.format(name=folder.name, package=package, folder=folder)
    }
    source = files("privada").joinpath("federated", "template")
    for name in ("__init__.py", "client_app.py", "server_app.py", "task.py"):
        texts[folder / package / name] = source.joinpath(name).read_text()
    for path, text in texts.items():
        write_text(path, text, replace=False)
    return list(texts)
