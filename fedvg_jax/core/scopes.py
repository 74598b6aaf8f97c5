"""Names of the loops of a run, which compiled programs and traces of a profiler show."""

ROUNDS = "rounds"
SEGMENTS = "segments"
"""Segments of a schedule's plan, between which lanes change clients."""
LOCAL_STEPS = "local_steps"
SCORING_PASSES = "scoring_passes"
EVALUATION = "evaluation"
