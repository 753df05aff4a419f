"""The one driver of protocols: decisions written as generators, which yield the effects that they want.

The protocols of the journal, of object writes, and of changes of names and owners do no I/O. So the explorer of
``tests/model`` can play each of them in every interleaving, and stop it at each ``yield``.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from gateway.errors import GatewayError

Effect = TypeVar("Effect")
Result = TypeVar("Result")


async def drive(steps: Generator[Effect, Any, Result], perform: Callable[[Effect], Awaitable[object]]) -> Result:
    """Carry out each effect, send its answer, and return what the protocol returns.

    The ``GatewayError`` of an effect is thrown into the protocol, which may catch it.
    """
    answer: object = None
    failed: GatewayError | None = None
    try:
        while True:
            try:
                effect = steps.send(answer) if failed is None else steps.throw(failed)
            except StopIteration as end:
                result: Result = end.value
                return result
            answer, failed = None, None
            try:
                answer = await perform(effect)
            except GatewayError as error:
                failed = error
    finally:
        steps.close()
