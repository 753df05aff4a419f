"""The object store: requests to it, byte for byte as they are meant, each sent once.

The client follows no redirect and repeats nothing: a repeated request could take effect after it was settled. Requests
are signed with the time of their intent, not with this process's clock.
"""
