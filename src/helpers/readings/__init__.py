"""What a reader sees beside a figure: tables with units in their headings, and sentences computed from them.

Every function takes stage tables or the scorecard and returns a display table or text; nothing is fitted here.
"""

from helpers.readings.card import (
    check_at_most,
    check_equal,
    checks_table,
    client_reading,
    facts_table,
    scalars,
    source_reading,
    subtitle,
)
from helpers.readings.diagnosis import (
    causes_reading,
    causes_table,
    client_table,
    evidence_reading,
    evidence_table,
    observations_table,
    plan_reading,
    plans_table,
    reconciliation_reading,
    refuted_table,
    role_shares,
    roles_table,
    silence_reading,
    telemetry_table,
)
from helpers.readings.law import (
    asymptote_reading,
    context_reading,
    crosschecks_table,
    law_reading,
    laws_table,
    levels_reading,
    levels_table,
    naive_fit_reading,
    notes_reading,
    prediction_reading,
    residuals_reading,
    warnings_reading,
)
from helpers.readings.log import (
    accounting_reading,
    balance_reading,
    balance_table,
    episodes_reading,
    episodes_table,
    events_reading,
    events_table,
    malformed_table,
    naive_rates,
    naive_reading,
    oddities_reading,
    phases_reading,
    ranks_reading,
    rejected_reading,
    rejected_table,
    sources_reading,
    topology_reading,
    topology_table,
)
from helpers.readings.physics import (
    assumptions_reading,
    chord_reading,
    components_reading,
    components_table,
    knees_reading,
    levers_reading,
    levers_table,
    prefill_reading,
    regimes_reading,
    roofline_reading,
    roofline_table,
    top_rate,
)
from helpers.readings.text import say, use_whole_tables

__all__ = [
    "accounting_reading", "assumptions_reading", "asymptote_reading", "balance_reading", "balance_table",
    "causes_reading", "causes_table", "check_at_most", "check_equal", "checks_table", "chord_reading",
    "client_reading", "client_table", "components_reading", "components_table", "context_reading",
    "crosschecks_table", "episodes_reading", "episodes_table", "events_reading", "events_table", "evidence_reading",
    "evidence_table", "facts_table", "knees_reading", "law_reading", "laws_table", "levels_reading", "levels_table",
    "levers_reading", "levers_table", "malformed_table", "naive_fit_reading", "naive_rates", "naive_reading",
    "notes_reading", "observations_table", "oddities_reading", "phases_reading", "plan_reading", "plans_table",
    "prediction_reading", "prefill_reading", "ranks_reading", "reconciliation_reading", "refuted_table",
    "regimes_reading", "rejected_reading", "rejected_table", "residuals_reading", "role_shares", "roles_table",
    "roofline_reading", "roofline_table", "say", "scalars", "silence_reading", "source_reading", "sources_reading",
    "subtitle", "telemetry_table", "top_rate", "topology_reading", "topology_table", "use_whole_tables",
    "warnings_reading",
]
