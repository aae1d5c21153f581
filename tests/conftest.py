"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
