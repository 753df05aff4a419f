"""The commands of ``gateway``, one module each, and what they share: terminal, requests, environment.

A help text waits for the imports of these modules. So they import the server in functions only: the plain package has
none of it. Only ``cli`` imports them.
"""
