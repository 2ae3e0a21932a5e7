"""Weak forms on meshes, assembled and solved by dolfin; runs inside helper groups only."""
