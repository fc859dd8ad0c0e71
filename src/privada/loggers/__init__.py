"""Callbacks that write what is public of a run: to files, to TensorBoard, to MLflow."""

from privada.loggers.csv_file import CSV
from privada.loggers.json_lines import JSONLines
from privada.loggers.logger import Logger
from privada.loggers.mlflow import MLflow
from privada.loggers.tensorboard import TensorBoard

__all__ = ["CSV", "JSONLines", "Logger", "MLflow", "TensorBoard"]
