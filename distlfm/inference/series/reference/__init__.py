"""Long chains of NUTS on the same density, which other methods are compared with."""
