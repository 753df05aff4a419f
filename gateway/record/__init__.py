"""The record: refused writes, takeovers and changes, durable before their answers, in one chain.

An event writes its entry to an intake, in its own transaction. ``sealing`` chains entries afterwards, under one lock,
and their positions are the only order. A reader seals first, so it sees all that a caller has been answered about.

``audit`` and ``denials`` record refusals in batches and answer afterwards. ``traffic`` and ``key_uses`` count in
memory, and ``flushing`` stores them. Planes import ``audit`` and ``denials``; streams import ``following``.
"""
