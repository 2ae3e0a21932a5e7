"""Inference for fields: partial differential equations on a mesh."""
