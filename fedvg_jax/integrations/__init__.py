"""FedVG in other frameworks: `integrations.flower` and `integrations.torch`, each behind its extra.

Importing fedvg_jax imports none of them.
"""
