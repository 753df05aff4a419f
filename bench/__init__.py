"""Measures what the gateway costs, as a ratio to the same work without it, in the same run. ``make bench`` runs it."""
