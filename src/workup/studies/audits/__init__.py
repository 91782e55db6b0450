"""How far the models in supporting roles can be trusted, beside exact counterparts.

Each module is one audit (`workup audit NAME`), made as a study is.
"""

from __future__ import annotations
