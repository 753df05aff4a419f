"""The record: refused writes, takeovers and changes, durable before their answers, in one chain.

An event writes its entry to an intake, in its own transaction. ``sealing`` has the database chain entries afterwards,
under one lock, and their positions are the only order. A reader seals first, so it sees all that a caller has been
answered about.

``refusals`` records refusals and denials in batches, and answers afterwards. ``flushing`` counts in memory, and stores
the counts. Planes import ``refusals``; streams import ``following``.
"""
