"""Federated training: the unit of privacy is a client, with all records that it holds."""

from typing import TYPE_CHECKING, Any

from privada.federated.clients import Clients, InProcess
from privada.federated.local import LocalSGD
from privada.federated.trainer import FederatedTrainer

if TYPE_CHECKING:
    from privada.federated.flower import PrivateStrategy, update_only

__all__ = [
    "Clients",
    "FederatedTrainer",
    "InProcess",
    "LocalSGD",
    "PrivateStrategy",
    "update_only",
]


def __getattr__(name: str) -> Any:
    if name not in ("PrivateStrategy", "update_only"):
        raise AttributeError(f"module 'privada.federated' has no attribute {name!r}")
    try:
        from privada.federated import flower
    except ImportError as error:
        raise ImportError(
            f"privada.federated.{name} needs Flower, which is not installed: "
            "pip install 'privada[federated]'."
        ) from error
    return getattr(flower, name)
