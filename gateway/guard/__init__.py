"""Guards: triggers on a table, for sessions that write it without the gateway.

The session claims by ``fencing.hold``, and the trigger checks with the snapshot of the writing statement. ``script``
makes the SQL, and ``installation`` puts it on a table. ``watching`` makes entries of what guards have refused, and
finds writes that no guard saw. Assembly, the doctor and the command import it.
"""
