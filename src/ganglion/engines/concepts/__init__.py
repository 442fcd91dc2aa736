"""Concept packs and what steering means: the same for every engine that has a residual stream."""
