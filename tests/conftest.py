"""One profile for all property tests: a slow or crowded machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("workup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("workup")
