"""The Latent Force Operator: a Fourier network that answers a new instance in milliseconds, with its uncertainty."""

from distlfm.lfo.answer import OperatorAnswer
from distlfm.lfo.calibrate import Calibration, calibrate, coverage
from distlfm.lfo.checkpoint import load_checkpoint, save_checkpoint
from distlfm.lfo.dataset import Batch, Examples
from distlfm.lfo.finish import finish
from distlfm.lfo.loop import Training
from distlfm.lfo.model import FourierOperator, OperatorOutput
from distlfm.lfo.operator import Operator
from distlfm.lfo.ranks import Alone, Ranks
from distlfm.lfo.schema import GridDim, OperatorSchema
from distlfm.lfo.settings import (
    AugmentConfig,
    LoopConfig,
    LossConfig,
    OperatorConfig,
    OptimiserConfig,
    SplitConfig,
    TrainSettings,
    split,
)

__all__ = [
    "Alone",
    "AugmentConfig",
    "Batch",
    "Calibration",
    "Examples",
    "FourierOperator",
    "GridDim",
    "LoopConfig",
    "LossConfig",
    "Operator",
    "OperatorAnswer",
    "OperatorConfig",
    "OperatorOutput",
    "OperatorSchema",
    "OptimiserConfig",
    "Ranks",
    "SplitConfig",
    "TrainSettings",
    "Training",
    "calibrate",
    "coverage",
    "finish",
    "load_checkpoint",
    "save_checkpoint",
    "split",
]
