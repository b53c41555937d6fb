"""What a model is made of: layers, weights, formats."""
