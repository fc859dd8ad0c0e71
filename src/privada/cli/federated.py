"""`privada federated`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

federated = typer.Typer(no_args_is_help=True)


@federated.callback()
def _group() -> None:
    """Train on clients that keep their records, with Flower."""


@federated.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Output directory (created).")],
) -> None:
    """Write a Flower app that trains with privacy for each client.

    It learns handwritten digits that ship with scikit-learn;
    change task.py for records of your own. Settings are in
    pyproject.toml. Needs: pip install 'privada[federated]'.

    $ privada federated new hospitals

    $ cd hospitals

    $ flwr run . --stream --federation-config num-supernodes=200
    """
    from privada.cli.printing import print_line
    from privada.workflows import new_federated_app

    made = new_federated_app(folder)
    console = Console()
    print_line(console, f"{made[0].parent}: {', '.join(path.name for path in made)}")
    print_line(console, "Simulate it on this machine, with 200 clients:")
    print_line(console, f"  cd {folder}")
    print_line(console, "  flwr run . --stream --federation-config num-supernodes=200")
