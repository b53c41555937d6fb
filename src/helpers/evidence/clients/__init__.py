"""Results of benchmark clients, in seconds and tokens whatever the tool prints: `read` is the front door."""

from helpers.evidence.clients.read import Clients, read_clients
from helpers.evidence.clients.windows import client_windows

__all__ = ["Clients", "client_windows", "read_clients"]
