"""The answer for one instance, of a fit or of an operator: force, outputs and parameters, in tables and pictures."""

from distlfm.answer.base import Answer as Answer
from distlfm.answer.base import Band as Band
from distlfm.answer.draws import Draw as Draw
from distlfm.answer.draws import Draws as Draws
from distlfm.answer.draws import Exceedance as Exceedance
from distlfm.answer.draws import Integral as Integral
from distlfm.answer.draws import PeakHeight as PeakHeight
from distlfm.answer.draws import PeakTime as PeakTime
from distlfm.answer.draws import Summary as Summary
from distlfm.answer.parameters import Parameters as Parameters
