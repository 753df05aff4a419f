"""A soak: everything at random. ``run.py`` says how a run goes, the other modules who takes part in it."""
