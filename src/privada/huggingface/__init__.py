"""Models and data sets of Hugging Face, trained under differential privacy.

Nothing here needs transformers or datasets: what they give is used as it is.
"""

from privada.clipping.model_losses import ModelLoss
from privada.huggingface.trainer import PredictionOutput, PrivateTrainer

__all__ = ["ModelLoss", "PredictionOutput", "PrivateTrainer"]
