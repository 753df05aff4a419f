"""The life of one request, from its head to its answer, and the moments at which faults strike it."""

from __future__ import annotations

from functools import partial

from tests.doubles.s3.bodies import Body
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.faults import Action, Moment, Plan
from tests.doubles.s3.messages import Answer, Head, document_of_error, error_answer
from tests.doubles.s3.service import Service
from tests.doubles.s3.wire import Wire


class Cut(Exception):
    """The connection is to be closed without an answer."""


class Life:
    """One request under its plan of faults. `evaluated` is the store's own status, None if it never came to that."""

    def __init__(self, service: Service, head: Head, write_id: str | None, plan: Plan) -> None:
        self._service = service
        self._head = head
        self._write_id = write_id
        self._plan = plan
        self.evaluated: int | None = None

    async def run(self, wire: Wire) -> Answer:
        """Take the request in, apply it, and give the answer to send. Raises Cut, Disconnected, Abandoned."""
        try:
            return await self._run(wire)
        except S3Error as error:
            return error_answer(error, self._head.raw_path)

    async def _run(self, wire: Wire) -> Answer:
        late = self._plan.find(Action.HOLD, Moment.ARRIVAL) is not None
        if not late:
            self._service.admit(self._head)
        intake = self._service.intake(self._head)
        await wire.read_into(intake.add)
        body = intake.body()
        struck = await self._strike(Moment.ARRIVAL)
        if late:
            self._service.admit(self._head)
        self._service.check_body(self._head, body)
        struck = struck or await self._strike(Moment.BEFORE)
        if struck is not None:
            return struck
        answer = await self._evaluate(body)
        repeating = self._plan.find(Action.REPEAT)
        if repeating is not None:
            repeating.repeat(partial(self._arrive_again, body))
        return await self._strike(Moment.AFTER) or answer

    async def _arrive_again(self, body: Body) -> int | None:
        """Judge a copy of the request, its signature included. Returns the unsent status; None: it was not let in."""
        try:
            self._service.admit(self._head)
            self._service.check_body(self._head, body)
        except S3Error:
            return None
        try:
            return (await self._service.evaluate(self._head, body, self._write_id)).status
        except S3Error as error:
            return error.status

    async def _evaluate(self, body: Body) -> Answer:
        try:
            answer = await self._service.evaluate(self._head, body, self._write_id)
        except S3Error as error:
            answer = error_answer(error, self._head.raw_path)
        self.evaluated = answer.status
        return answer

    async def _strike(self, at: Moment) -> Answer | None:
        """Let the faults of this moment happen; the answer is that of a fault, if one gives it."""
        await self._plan.hold(at)
        if self._plan.find(Action.CUT, at) is not None:
            raise Cut
        failing = self._plan.find(Action.FAIL, at)
        if failing is not None:
            error = S3Error(failing.details.code, status=failing.details.status)
            return error_answer(error, self._head.raw_path)
        hidden = self._plan.find(Action.ERROR_IN_200, at)
        if hidden is not None:
            return document_of_error(S3Error(hidden.details.code, status=200), self._head.raw_path)
        return None
