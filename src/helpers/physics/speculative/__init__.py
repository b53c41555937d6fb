"""Rounds of draft and verification: acceptance, parts, break-even."""
