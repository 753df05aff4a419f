"""Several processes that serve one address: a parent that accepts connections, and workers that serve them.

To the protocol, workers are several gateways: none relies on the memory of another. The parent passes each connection
to a worker, and serves nothing itself. One worker reloads, and the others follow. ``commands.serve`` imports
``parent``, and the app ``link``.
"""
