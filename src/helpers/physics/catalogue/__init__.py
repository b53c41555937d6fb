"""Accelerators and models by name."""
