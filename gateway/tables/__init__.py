"""The table plane: PostgREST's dialect, with a fence around every write.

``pipeline`` has the stages of a request in order. A write claims its resources, writes, and verifies the names of the
rows that it has touched, in one READ COMMITTED transaction. A name without a claim undoes everything.

Three traps shape this folder:

- A statement takes its snapshot before it waits for a lock. So a claim and its write are two statements, and each step
  of a walk through foreign keys is one, too.
- The cached catalog may be outdated. So each statement checks its table, under the lock that it has.
- Code in the database acts on its own. So only simple tables take the fast path: one statement that writes if the fence
  carries exactly this token. It confirms, and never raises.

``dialect`` and ``sql`` are pure; ``execute`` does the I/O. Assembly imports ``pipeline`` and ``schema_cache``. Guards,
the doctor and changes of names use pure parts. This folder and ``objects`` never import each other.
"""
