"""How far the models in supporting roles can be trusted, measured against exact counterparts."""
