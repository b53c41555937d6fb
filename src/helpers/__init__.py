"""rooflog: from an LLM server log to a defended statement of what limits decode."""

import os

__version__ = "0.1.0"

# What polars frees shall go back to the system soon, else the tables of a large log count twice: as they were read, and
# as pandas got them. Its allocator reads this when polars is first imported; on other systems it means nothing.
os.environ.setdefault("_RJEM_MALLOC_CONF", "background_thread:true,dirty_decay_ms:200,muzzy_decay_ms:0")
