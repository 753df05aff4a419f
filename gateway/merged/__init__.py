"""Lists, exports and streams of several databases, merged by time.

Each part answers for its own database, with its own checks. An answer says which databases it lacks. ``routing``
imports it.
"""
