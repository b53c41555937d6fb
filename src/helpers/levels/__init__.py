"""From clean intervals to one step time per level, and which server lives may share a law."""

from helpers.levels.configuration import keep_one_configuration, keep_one_source
from helpers.levels.rule import LevelRule
from helpers.levels.summary import summarise_levels

__all__ = ["LevelRule", "keep_one_configuration", "keep_one_source", "summarise_levels"]
