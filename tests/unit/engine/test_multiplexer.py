"""Which message goes to whom between the clients of a command and the command, without a process."""

import json
from typing import Any

import pytest

from kit.attempts import Collected
from kit.clients import call, message
from turnlog.core.kinds import ErrorKind
from turnlog.engine.command.multiplexer import CommandClient, Multiplexer
from turnlog.engine.command.reply import CommandReply
from turnlog.exchange.open_requests import GIVEN_UP
from turnlog.observe.events import QuestionRefused
from turnlog.record.deadlines import Progress
from turnlog.record.errors import Failure
from turnlog.wire.jsonrpc import Malformed, messages_of, parse


class Command:
    """A command as its multiplexer sees it: the lines that it got, and what it says."""

    def __init__(self, *, renames: bool) -> None:
        self.lines: list[bytes] = []
        self.log = Collected()
        self._ids = 0
        self.messages = Multiplexer(
            "cmd", self.log, str, self._new_id, self.lines.append, renames=renames
        )
        self.number = self.messages.on_started()

    def _new_id(self) -> bytes:
        self._ids += 1
        return b'"t%d"' % self._ids

    def client(self) -> CommandClient:
        """Add a client."""
        one = CommandClient()
        self.messages.clients.add(one)
        return one

    def sent(
        self, client: CommandClient, line: bytes, progress: Progress | None = None
    ) -> CommandReply:
        """Send the command a client's line; return the response to the requests in it."""
        reply = CommandReply(progress or Progress(), streams=True)
        self.messages.send(client, reply, messages_of(parse(line)), line)
        return reply

    def tell(self, client: CommandClient, line: bytes) -> None:
        """Send the command what gets no answer."""
        self.messages.send(client, None, messages_of(parse(line)), line)

    def say(self, value: object) -> None:
        """Let the command write a line."""
        self.write(json.dumps(value).encode())

    def write(self, line: bytes) -> None:
        """Let the command write a line."""
        content = parse(line)
        assert not isinstance(content, Malformed)
        self.messages.on_content(content, line)

    def got(self) -> list[Any]:
        """Take what the command got."""
        found = [json.loads(line) for line in self.lines]
        self.lines.clear()
        return found


async def said(reply: CommandReply) -> list[Any]:
    """Take what has come for a request."""
    return [json.loads(raw) for raw, _ in await reply.messages()]


def result(request_id: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": more}


def question(request_id: Any, method: str = "elicitation/create") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {}}


def cancel(request_id: Any) -> bytes:
    return message("notifications/cancelled", {"requestId": request_id}, request_id=None)


@pytest.fixture
async def shared() -> Command:
    return Command(renames=True)


@pytest.fixture
async def alone() -> Command:
    return Command(renames=False)


@pytest.mark.promise("CMD-1")
async def test_equal_ids_and_tokens_of_two_clients_are_kept_apart(shared: Command) -> None:
    one, two = shared.client(), shared.client()
    asked = [shared.sent(each, call("a", _meta={"progressToken": 7})) for each in (one, two)]
    first, second = shared.got()
    assert first["id"] != second["id"]
    token = second["params"]["_meta"]["progressToken"]
    assert token != first["params"]["_meta"]["progressToken"]
    progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
    shared.say({**progress, "params": {"progressToken": token, "progress": 1}})
    shared.say(result(second["id"]))
    shared.say(result(first["id"]))
    assert await said(asked[0]) == [result(1)]
    told, answer = await said(asked[1])
    assert (told["params"]["progressToken"], answer) == (7, result(1))


async def test_a_single_client_gets_and_sends_all_bytes_as_they_came(alone: Command) -> None:
    client = alone.client()
    line = b"[ %b ,%b ]" % (call("a", request_id=1), call("b", request_id=2))
    reply = alone.sent(client, line)
    assert alone.lines == [line]
    answers = b'[ {"jsonrpc":"2.0","id":2,"result":{}} , {"jsonrpc":"2.0","id":1,"result":{}}]'
    alone.write(answers)
    assert [raw for raw, _ in await reply.messages()] == [answers]
    assert await reply.messages() == []


async def test_an_answer_whose_id_has_another_type_passes_as_it_came(alone: Command) -> None:
    reply = alone.sent(alone.client(), call("a", request_id=1))
    alone.say(result("1"))
    assert await said(reply) == [result("1")]


async def test_an_error_without_an_id_answers_the_only_request_with_a_client(
    shared: Command,
) -> None:
    client = shared.client()
    shared.messages.on_left(shared.sent(client, call("left", request_id=1)))
    reply = shared.sent(client, call("waits", request_id=2))
    shared.say({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "no"}})
    (answer,) = await said(reply)
    assert answer["error"]["message"] == "no"


async def test_a_cancel_names_the_id_that_the_command_knows(shared: Command) -> None:
    one, two = shared.client(), shared.client()
    reply = shared.sent(one, call("a"))
    (asked,) = shared.got()
    shared.tell(two, cancel(1))  # its client has no such request
    assert shared.got() == []
    shared.tell(one, cancel(1))
    assert shared.got()[0]["params"]["requestId"] == asked["id"]
    assert await reply.messages() == []


async def test_a_cancel_of_a_single_client_passes_as_it_came(alone: Command) -> None:
    client = alone.client()
    reply = alone.sent(client, call("a"))
    for line in (cancel(1), cancel(9)):
        alone.lines.clear()
        alone.tell(client, line)
        assert alone.lines == [line]
    assert await reply.messages() == []


async def test_a_guarded_request_that_was_cancelled_may_still_be_answered(shared: Command) -> None:
    client = shared.client()
    reply = shared.sent(client, call("a"), Progress(on_timeout=lambda _: True))
    (asked,) = shared.got()
    shared.tell(client, cancel(1))
    shared.say(result(asked["id"]))
    assert await said(reply) == [result(1)]


@pytest.mark.parametrize("renames", [False, True])
async def test_the_answer_to_a_request_without_a_client_is_read_as_late(renames: bool) -> None:
    command = Command(renames=renames)
    client, found = command.client(), list[str]()
    progress = Progress(late=lambda: lambda key, _, __: found.append(key))
    left = command.sent(client, call("a", request_id=1), progress)
    cancelled = command.sent(client, call("b", request_id=2), progress)
    asked = [one["id"] for one in command.got()]
    command.messages.on_left(left)
    command.messages.cancel(cancelled)
    for request_id in asked:
        command.say(result(request_id))
    assert found == ["1", "2"]
    assert await cancelled.messages() == []


async def test_the_oldest_of_too_many_requests_without_a_client_are_cancelled(
    shared: Command,
) -> None:
    client = shared.client()
    for number in range(GIVEN_UP):
        shared.messages.on_left(shared.sent(client, call("a", request_id=number)))
    first = shared.got()[0]
    shared.messages.on_left(shared.sent(client, call("a", request_id="last")))
    _, cancelled = shared.got()
    assert cancelled["params"]["requestId"] == first["id"]
    assert shared.messages.is_quiet()


async def test_an_id_that_is_used_again_is_for_the_newer_request(alone: Command) -> None:
    client = alone.client()
    older, newer = (alone.sent(client, call("a", request_id=1)) for _ in range(2))
    with pytest.raises(Failure, match="used again"):
        await older.messages()
    alone.say(result(1))
    assert await said(newer) == [result(1)]


async def test_a_question_goes_to_the_only_client_that_calls_and_its_answer_back(
    shared: Command,
) -> None:
    one, two = shared.client(), shared.client()
    reply = shared.sent(two, call("a"))
    shared.got()
    shared.say(question("q"))
    assert await said(reply) == [question("q")]
    answer = json.dumps(result("q")).encode()
    shared.tell(one, answer)  # it was not asked
    shared.tell(two, answer)
    shared.tell(two, answer)  # it has answered
    assert shared.got() == [result("q")]


@pytest.mark.promise("CMD-1")
async def test_a_question_that_may_be_anybodys_is_refused_and_a_ping_answered(
    shared: Command,
) -> None:
    for _ in range(2):
        shared.client()
    shared.say(question("q"))
    shared.say(question("p", "ping"))
    refused, answered = shared.got()
    assert (refused["id"], refused["error"]["code"]) == ("q", -32603)
    assert answered == result("p")
    assert [event.method for event in shared.log.of(QuestionRefused)] == ["elicitation/create"]


@pytest.mark.parametrize("renames", [False, True])
async def test_an_answer_to_an_earlier_process_does_not_reach_the_next_one(renames: bool) -> None:
    command = Command(renames=renames)
    client = command.client()
    before = command.sent(client, call("a"))
    command.say(question("q"))
    assert await said(before) == [question("q")]
    command.messages.on_ended(command.number, ErrorKind.CONNECTION_LOST, "it ended", None)
    with pytest.raises(Failure, match="it ended"):
        await before.messages()
    command.messages.on_started()
    after = command.sent(client, call("a", request_id=2))
    command.got()
    command.say(question("q"))
    (asked,) = await said(after)
    assert asked["id"] != "q"
    command.tell(client, json.dumps(result("q")).encode())
    assert command.got() == []
    command.tell(client, json.dumps(result(asked["id"])).encode())
    assert command.got() == [result("q")]


async def test_a_client_that_leaves_takes_its_requests_back_and_refuses_its_questions(
    shared: Command,
) -> None:
    one, two = shared.client(), shared.client()
    leaves = shared.sent(one, call("a"))
    stays = shared.sent(two, message("tools/list"))
    asked, listed = shared.got()
    shared.say(question("q"))  # of the only client that calls
    assert await said(leaves) == [question("q")]
    shared.messages.remove(one)
    with pytest.raises(Failure) as failed:
        await leaves.messages()
    assert failed.value.kind is ErrorKind.CANCELLED_BY_CALLER
    cancelled, refused = shared.got()
    assert cancelled["params"]["requestId"] == asked["id"]
    assert refused["id"] == "q"
    shared.say(result(listed["id"]))
    assert await said(stays) == [result(1)]


async def test_a_notification_about_the_command_goes_to_each_client_that_listens(
    shared: Command,
) -> None:
    listeners = [CommandReply(Progress(), streams=True) for _ in range(2)]
    for reply in listeners:
        shared.client().listen(reply)
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    shared.say(changed)
    assert [await said(reply) for reply in listeners] == [[changed], [changed]]


async def test_a_message_for_a_client_without_a_stream_is_kept_for_the_next_one(
    alone: Command,
) -> None:
    client = alone.client()
    note: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
    alone.say(note)
    reply = alone.sent(client, call("a"))
    assert await said(reply) == [note]


async def test_the_handshake_of_a_shared_command_is_turnlogs_own(shared: Command) -> None:
    shared.tell(shared.client(), message("notifications/initialized", request_id=None))
    assert shared.lines == []
    reply = CommandReply(Progress(), streams=False)
    shared.messages.open(reply, message("initialize", {}))
    (asked,) = shared.got()
    shared.say(result(asked["id"]))
    assert await said(reply) == [result(0)]


async def test_the_only_client_is_asked_without_a_call(shared: Command) -> None:
    client, listener = shared.client(), CommandReply(Progress(), streams=True)
    client.listen(listener)
    shared.say(question("roots", "roots/list"))
    assert await said(listener) == [question("roots", "roots/list")]


async def test_a_question_is_cancelled_at_the_client_that_got_it(shared: Command) -> None:
    one, two = shared.client(), shared.client()
    reply = shared.sent(one, call("asks"))
    shared.say(question("q"))
    assert await said(reply) == [question("q")]
    shared.sent(two, call("a"))  # now the call of either could be meant
    withdrawn = json.loads(cancel("q"))
    shared.say(withdrawn)
    assert await said(reply) == [withdrawn]


async def test_a_later_process_cancels_its_question_by_the_id_that_the_client_got(
    alone: Command,
) -> None:
    client = alone.client()
    alone.messages.on_started()
    reply = alone.sent(client, call("asks"))
    alone.say(question("q"))
    (asked,) = await said(reply)
    alone.say(json.loads(cancel("q")))
    (withdrawn,) = await said(reply)
    assert asked["id"] != "q"
    assert withdrawn["params"] == {"requestId": asked["id"]}


@pytest.mark.promise("CMD-1")
async def test_a_call_without_a_client_that_waits_may_still_ask(shared: Command) -> None:
    one, two = shared.client(), shared.client()
    shared.messages.on_left(shared.sent(one, call("a")))
    reply = shared.sent(two, call("asks"))
    left, _ = shared.got()
    shared.say(question("q"))  # of either call
    assert [each["id"] for each in shared.got()] == ["q"]
    shared.say(result(left["id"]))
    shared.say(question("r"))
    assert await said(reply) == [question("r")]


@pytest.mark.promise("CMD-1")
async def test_a_log_message_goes_to_the_only_caller_and_to_all_listeners_where_it_is_anybodys(
    shared: Command,
) -> None:
    clients: list[CommandClient] = []
    listeners: list[CommandReply] = []
    for _ in range(2):
        clients.append(shared.client())
        listeners.append(CommandReply(Progress(), streams=True))
        clients[-1].listen(listeners[-1])
    log: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
    reply = shared.sent(clients[1], call("a"))
    shared.say(log)
    assert await said(reply) == [log]
    shared.sent(clients[0], call("b"))
    shared.say({**log, "method": "notifications/tasks/status"})
    shared.say(log)
    assert [await said(each) for each in listeners] == [[log], [log]]


async def test_an_array_of_requests_and_notifications_answers_no_request(alone: Command) -> None:
    reply = alone.sent(alone.client(), call("asks", request_id=5, _meta={"progressToken": "t"}))
    params = {"progressToken": "t", "progress": 1}
    progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
    alone.say([progress, question(5)])
    assert await said(reply) == [progress, question(5)]
    alone.say(result(5))
    assert await said(reply) == [result(5)]
