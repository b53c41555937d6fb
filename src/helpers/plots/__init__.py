"""Every figure: pure builders that take stage tables and return a plotly Figure; they never show, save or print.

`style` holds the template and the meaning of colours, `logs` the figures of the log itself, `levels` and `laws`
those of levels and laws, `bounds` those of the roofline, `components` those of the parts of a step and of levers,
`telemetry` and `evidence` those of what else was recorded and of the diagnosis.
"""

from plotly.graph_objects import Figure

from helpers.plots.bounds import ratio_finding, ratio_to_bound, roofline_intensity, roofline_steps
from helpers.plots.components import component_bars, lever_bars
from helpers.plots.evidence import causes_bars, client_time_bar, role_bars
from helpers.plots.laws import law_finding, loo_errors, residuals, step_vs_running_req
from helpers.plots.levels import level_blocks, naive_over_level, throughput_vs_running_req
from helpers.plots.logs import episode_rates, per_rank, phase_bar, rejected_reasons, timeline
from helpers.plots.style import use_template
from helpers.plots.telemetry import telemetry_over_phases

__all__ = [
    "Figure", "causes_bars", "client_time_bar", "component_bars", "episode_rates", "law_finding", "level_blocks",
    "lever_bars", "loo_errors", "naive_over_level", "per_rank", "phase_bar", "ratio_finding", "ratio_to_bound",
    "rejected_reasons", "residuals", "role_bars", "roofline_intensity", "roofline_steps", "step_vs_running_req",
    "telemetry_over_phases", "throughput_vs_running_req", "timeline", "use_template",
]
