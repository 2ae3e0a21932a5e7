"""Measurements: `python -m benchmarks NAME` prints one JSON object last, each figure beside its goal."""
