"""One step: what it asks of a rank, how long that takes, the lines at the levels of the data."""
