"""Room of the physics stage."""
