"""How devices are joined, and in which state their links are under load."""

from helpers.evidence.links.state import Finding, judge_links, link_states_of_telemetry
from helpers.evidence.links.topology import Topology, read_topology

__all__ = ["Finding", "Topology", "judge_links", "link_states_of_telemetry", "read_topology"]
