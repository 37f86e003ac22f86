"""Which open request of a server an answer is for."""

import pytest

from turnlog.exchange.open_requests import GIVEN_UP, OpenRequests, answered_key
from turnlog.wire.jsonrpc import Message, parse


def answer(raw_id: str) -> Message:
    message = parse(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % raw_id.encode())
    assert isinstance(message, Message)
    return message


def failure(raw_id: str = "null") -> Message:
    text = b'{"jsonrpc":"2.0","id":%b,"error":{"code":1,"message":"no"}}'
    message = parse(text % raw_id.encode())
    assert isinstance(message, Message)
    return message


def of(*keys: str) -> OpenRequests[str]:
    """Return open requests, each known as its key."""
    requests: OpenRequests[str] = OpenRequests()
    for key in keys:
        requests.add(key, key)
    return requests


def test_an_answer_is_for_the_request_with_its_id() -> None:
    requests = of("1", '"1')
    assert requests.key_of(answer("1")) == "1"
    assert requests.key_of(answer('"1"')) == '"1'
    assert requests.take("1") == "1"
    assert requests.take("1") is None
    assert list(requests) == ['"1']


def test_an_id_of_the_other_type_is_meant_where_only_that_one_is_open() -> None:
    assert of("7").key_of(answer('"7"')) == "7"


def test_the_newest_request_with_an_id_is_answered_first() -> None:
    requests: OpenRequests[str] = OpenRequests()
    requests.add("1", "older")
    requests.add("1", "newer")
    assert requests.find("1") == "newer"
    assert [requests.take("1") for _ in range(3)] == ["newer", "older", None]
    assert not requests


def test_an_error_without_an_id_answers_the_only_request() -> None:
    assert of("1").key_of(failure()) == "1"
    assert of("1", "2").key_of(failure()) not in {"1", "2"}


def test_an_error_without_an_id_is_not_for_a_request_that_nobody_waits_for() -> None:
    requests: OpenRequests[str] = OpenRequests(lambda one: one == "awaited")
    requests.add("1", "left")
    requests.add("2", "awaited")
    assert requests.key_of(failure()) == "2"


def test_an_unknown_id_answers_the_request_whose_id_could_not_be_read() -> None:
    assert of("", "2").key_of(answer("9")) == ""
    assert of("", "2").key_of(answer("2")) == "2"


@pytest.mark.parametrize(
    ("raw_id", "key"), [("2", "2"), ('"1"', "1"), ("9", "9")], ids=["own", "type", "unknown"]
)
def test_on_a_stream_of_its_own_an_answer_may_be_for_a_request_of_another_one(
    raw_id: str, key: str
) -> None:
    assert answered_key(answer(raw_id), {"2", "3"}, {"1", "2", "3"}.__contains__) == key


def test_the_request_whose_id_could_not_be_read_takes_no_answer_of_another_stream() -> None:
    assert answered_key(answer("1"), {""}, {"", "1"}.__contains__) == "1"
    assert answered_key(answer("9"), {""}, {"", "1"}.__contains__) == ""


def test_the_answer_to_a_request_that_was_given_up_is_late() -> None:
    requests = of("1")
    assert requests.give_up("1", "1")
    assert not requests
    assert (requests.late("1"), requests.given_up) == ("1", ["1"])
    assert requests.key_of(answer('"1"')) == "1"
    assert requests.take("1") == "1"
    assert requests.late("1") is None


def test_only_an_open_request_can_be_removed_or_given_up() -> None:
    requests = of("1")
    assert not requests.remove("1", "another")
    assert not requests.give_up("2", "2")
    assert requests.late("2") is None


def test_cleared_requests_get_no_answer_and_those_given_up_still_may() -> None:
    requests = of("1", "2")
    requests.give_up("2", "2")
    requests.clear()
    assert not requests
    assert requests.take("1") is None
    assert requests.take("2") == "2"


def test_late_answers_are_expected_within_a_bound_and_of_one_process() -> None:
    requests = of(*map(str, range(GIVEN_UP + 1)))
    for key in list(requests):
        requests.give_up(key, key)
    assert requests.late("0") is None
    assert len(requests.given_up) == GIVEN_UP
    requests.forget_late()
    assert requests.late("1") is None


@pytest.mark.parametrize("key", ["1", '"a'])
def test_an_id_that_was_given_up_may_be_used_again(key: str) -> None:
    requests = of(key)
    requests.give_up(key, key)
    requests.add(key, "again")
    assert [requests.take(key) for _ in range(2)] == ["again", key]
