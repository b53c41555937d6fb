"""What else a machine recorded: telemetry, links, client results, kernel profiles; and how their clocks align."""
