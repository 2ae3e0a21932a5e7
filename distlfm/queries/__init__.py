"""Answers of a trained operator: asked for, scored, written as tables, and exported."""
