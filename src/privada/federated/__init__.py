"""Federated training: the unit of privacy is a client, with all records that it holds."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privada.federated.clients import Clients, InProcess
from privada.federated.local import LocalSGD
from privada.federated.trainer import FederatedTrainer

if TYPE_CHECKING:
    from privada.federated.device import DeviceNoise
    from privada.federated.flower import PrivateStrategy, update_only

__all__ = [
    "Clients",
    "DeviceNoise",
    "FederatedTrainer",
    "InProcess",
    "LocalSGD",
    "PrivateStrategy",
    "update_only",
]


_ON_FLOWER = {"DeviceNoise": "device", "PrivateStrategy": "flower", "update_only": "flower"}


def __getattr__(name: str) -> Any:
    if name not in _ON_FLOWER:
        raise AttributeError(f"module 'privada.federated' has no attribute {name!r}")
    try:
        home = import_module(f"privada.federated.{_ON_FLOWER[name]}")
    except ImportError as error:
        raise ImportError(
            f"privada.federated.{name} needs Flower, which is not installed: "
            "pip install 'privada[federated]'."
        ) from error
    return getattr(home, name)
