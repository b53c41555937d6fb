"""Physics: what the hardware allows, without a log.

hardware (the catalogue) -> step (bytes of one decode step, the roofline at given levels).
"""
