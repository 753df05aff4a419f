"""``gateway doctor``: findings about an installation, each with its consequence and the next step.

It looks at all that it can reach. An unreachable part is a finding, and no secret is shown. Only commands import this.
"""
