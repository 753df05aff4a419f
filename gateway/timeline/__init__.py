"""The timeline of a resource as a picture in numbers: ``history`` → ``picture``. Pure.

A lane is a token with the name that its holder gives itself. A takeover that the record lacks is inferred, drawn
dashed, and never preferred to a recorded one. The page makes an SVG of the picture.
"""
