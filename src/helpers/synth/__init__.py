"""Simulate servers whose truth is known: logs that are byte-true to an engine's version, and truth.json.

A discrete-event model of a continuous-batching server and a closed-loop client. It is the oracle of our tests, and
it answers "what would my sweep look like and how long would it take" (`estimate`).
"""

from helpers.synth import presets
from helpers.synth.config import Client, ConfigError, Lengths, Noise, Server, Speculation, StepLaw
from helpers.synth.simulation import Simulation, estimate, simulate

__all__ = [
    "Client", "ConfigError", "Lengths", "Noise", "Server", "Simulation", "Speculation", "StepLaw", "estimate",
    "presets", "simulate",
]
