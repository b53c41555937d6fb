"""Physics: what the hardware allows, without a log.

catalogue and reading (names and config.json) -> model (layers, weights, formats) -> steps (bytes, FLOPs, time, lines at
levels; linking adds the collectives) -> what_if (components and levers), speculative (rounds).
"""
