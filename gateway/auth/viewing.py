"""What a caller is shown of the record: all of it where it may audit, what it has done itself otherwise."""

from gateway.auth.principal import Principal


def shown_to(principal: Principal) -> str | None:
    """The one caller whose entries this principal is shown (``Filters.shown_to``); None: it is shown all of them.

    Who has fenced credentials has them for writing, and is shown what its caller has done at the most.
    """
    return None if principal.audit and principal.grant is None else principal.name
