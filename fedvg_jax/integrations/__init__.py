"""FedVG in other frameworks: `integrations.flower` and `integrations.torch`, each behind an extra of its own.

Importing fedvg_jax imports none of them.
"""
