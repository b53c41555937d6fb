"""``python -m helpers.cli`` is ``rooflog``."""

from helpers.cli.app import main

raise SystemExit(main())
