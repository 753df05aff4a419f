"""``gateway doctor``: findings about an installation, each with its consequence and the next step.

It looks at all that it can reach. An unreachable part is a finding, and no secret is shown. ``findings`` has the words
of all reports, which guards use as well. Commands import the rest.
"""
