"""Room of the ingest stage."""
