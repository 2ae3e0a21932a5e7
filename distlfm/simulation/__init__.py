"""Instances drawn from the prior of a model: series and fields, with their truth."""
