"""Kernel profiles: `read` is the front door; traces, nsys and ncu tables become kernels with roles, steps and gaps."""

from helpers.evidence.profiles.kernel_roles import vendor_of
from helpers.evidence.profiles.read import Profile, read_profile, role_shares

__all__ = ["Profile", "read_profile", "role_shares", "vendor_of"]
