"""The Latent Force Operator: a Fourier network that answers a new instance in milliseconds, with its uncertainty."""

from distlfm.lfo.answer import OperatorAnswer as OperatorAnswer
from distlfm.lfo.answer import OperatorEstimate as OperatorEstimate
from distlfm.lfo.calibrate import Calibration as Calibration
from distlfm.lfo.calibrate import calibrate as calibrate
from distlfm.lfo.calibrate import coverage as coverage
from distlfm.lfo.checkpoint import load_checkpoint as load_checkpoint
from distlfm.lfo.checkpoint import save_checkpoint as save_checkpoint
from distlfm.lfo.dataset import Batch as Batch
from distlfm.lfo.dataset import Examples as Examples
from distlfm.lfo.finish import finish as finish
from distlfm.lfo.loop import Training as Training
from distlfm.lfo.model import FourierOperator as FourierOperator
from distlfm.lfo.model import OperatorOutput as OperatorOutput
from distlfm.lfo.operator import Operator as Operator
from distlfm.lfo.ranks import Alone as Alone
from distlfm.lfo.ranks import Ranks as Ranks
from distlfm.lfo.schema import GridDim as GridDim
from distlfm.lfo.schema import OperatorSchema as OperatorSchema
from distlfm.lfo.settings import AugmentConfig as AugmentConfig
from distlfm.lfo.settings import LoopConfig as LoopConfig
from distlfm.lfo.settings import LossConfig as LossConfig
from distlfm.lfo.settings import OperatorConfig as OperatorConfig
from distlfm.lfo.settings import OptimiserConfig as OptimiserConfig
from distlfm.lfo.settings import SplitConfig as SplitConfig
from distlfm.lfo.settings import TrainSettings as TrainSettings
from distlfm.lfo.settings import split as split
