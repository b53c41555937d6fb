"""The next experiment: chosen by what it tells per minute, with its duration, predictions and a script to run."""

from helpers.plan.changes import Changes, kept_args
from helpers.plan.choose import CAUSES, Plan, choose, weights
from helpers.plan.duration import Duration, Load, sweep_duration
from helpers.plan.experiments import TABLE, Experiment
from helpers.plan.known import Known, from_card
from helpers.plan.measured import prompts_of
from helpers.plan.outcomes import Outcome
from helpers.plan.policy import choose_for, is_good, standing
from helpers.plan.script import script

__all__ = ["CAUSES", "TABLE", "Changes", "Duration", "Experiment", "Known", "Load", "Outcome", "Plan", "choose",
           "choose_for", "from_card", "is_good", "kept_args", "prompts_of", "script", "standing", "sweep_duration",
           "weights"]
