"""What all tests share: how thoroughly laws are tried; none fails because a machine is slow.

`make quick` tries fewer examples than `make test`.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("thorough", UNTIMED, max_examples=100)
settings.register_profile("quick", UNTIMED, max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "thorough"))
