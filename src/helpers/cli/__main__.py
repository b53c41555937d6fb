"""``python -m helpers.cli`` is ``rooflog``."""

from helpers.cli import main

raise SystemExit(main())
