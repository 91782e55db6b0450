"""Questions about policies that need several evaluations or many probes: `workup study NAME`.

Each module is one study, by its name with hyphens; `base` is what several share. `audits` are the
same for the models in supporting roles, and `review` is for people. There is no registry.
"""

from __future__ import annotations
