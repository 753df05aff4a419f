"""PostgREST's dialect: from the texts of a request to frozen values, and from results to answers. Pure.

``request`` is the whole, with its preferences and media types; ``query`` and ``grammar`` read its parts. An unknown
part is refused, not ignored. The other folders of the plane import it.
"""
