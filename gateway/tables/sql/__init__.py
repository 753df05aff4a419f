"""SQL for requests: a shape is a request without its values, and has one statement that is kept. Pure.

Values are parameters, as texts that the server casts. Every identifier goes through one quoting function. ``execute``
imports it; guards and the doctor quote by it.
"""
