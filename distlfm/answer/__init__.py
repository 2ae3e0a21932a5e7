"""The answer for one instance, of a fit or of an operator: force, outputs and parameters, in tables and pictures."""

from distlfm.answer.base import Answer, Band
from distlfm.answer.draws import Draw, Draws, Exceedance, Integral, PeakHeight, PeakTime, Summary
from distlfm.answer.parameters import Parameters

__all__ = [
    "Answer",
    "Band",
    "Draw",
    "Draws",
    "Exceedance",
    "Integral",
    "Parameters",
    "PeakHeight",
    "PeakTime",
    "Summary",
]
