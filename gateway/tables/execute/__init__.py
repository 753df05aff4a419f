"""The I/O of the table plane: planning, the fast path and its batches, transactions, reads, calls.

A write takes one of two ways. ``fast_path`` confirms a held token in one statement, which shares its trip with others.
``transaction`` does all else: it alone refuses and records. A recipe decides nothing of its own: it repeats a planned
request with other values. ``pipeline`` imports these modules.
"""
