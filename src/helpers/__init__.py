"""rooflog: from an LLM server log to a defended statement of what limits decode."""

__version__ = "0.1.0"
