"""Benchmarks: the field's tables on one's own machine, model and prompts."""
