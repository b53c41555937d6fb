"""Where a measured step goes, and what changes would give."""
