"""S3's texts: addresses, operations, headers, conditions, documents. Pure.

``operations`` is the one table of what is served; all else is ``NotImplemented``. An unknown ``x-amz-*`` header of a
write is refused, because the store might act on it. The other folders of the plane import it.
"""
