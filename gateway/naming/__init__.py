"""Changes of the names that rows and keys have: ``gateway naming``.

The naming in force is a fact in the database, and each write proves it where it takes effect. ``change`` has the order
of a change, without I/O: close, settle, carry over, open. The explorer plays it. Only commands and the doctor import
this.
"""
