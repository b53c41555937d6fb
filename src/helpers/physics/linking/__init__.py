"""Time of collectives between ranks."""
