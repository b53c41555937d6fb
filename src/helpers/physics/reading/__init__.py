"""A config.json read into a model: keys, layers, number formats."""
