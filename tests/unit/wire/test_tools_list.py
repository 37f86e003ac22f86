"""What a server says of its tools."""

from hashlib import sha256

from msgspec import Raw

from turnlog.wire.tools_list import Definition, read_tools_list


def test_a_page_lists_definitions_and_where_to_go_on() -> None:
    page = read_tools_list(
        Raw(
            b'{"tools":[{"name":"a","annotations":{"readOnlyHint":true,"idempotentHint":false,'
            b'"destructiveHint":false}},{"name":"b","outputSchema":{"type":"null"}}],'
            b'"nextCursor":"p2","ttlMs":5}'
        )
    )
    assert page.next_cursor == "p2"
    a, b = page.definitions["a"], page.definitions["b"]
    assert (a.read_only, a.idempotent) == (True, False)
    assert (b.read_only, b.idempotent) == (None, None)


def test_a_digest_is_that_of_the_canonical_definition() -> None:
    one = read_tools_list(Raw(b'{"tools":[{"name":"a","description":"\\u00e9"}]}'))
    other = read_tools_list(Raw(b'{"tools":[ {"description" : "\xc3\xa9", "name":"a"} ]}'))
    changed = read_tools_list(Raw(b'{"tools":[{"name":"a","description":"e"}]}'))
    canonical = '{"description":"é","name":"a"}'.encode()
    assert one.definitions == other.definitions
    assert one.definitions["a"].digest == sha256(canonical).digest()
    assert one.definitions["a"].digest != changed.definitions["a"].digest


def test_a_definition_without_canonical_form_has_the_digest_of_its_bytes() -> None:
    text = b'{"name":"a","x":NaN}'
    page = read_tools_list(Raw(b'{"tools":[' + text + b"]}"))
    assert page.definitions["a"].digest == sha256(text).digest()


def test_unreadable_tools_are_left_out() -> None:
    page = read_tools_list(
        Raw(
            b'{"tools":[5,{"name":6},{},{"name":"ok","annotations":{"readOnlyHint":"yes",'
            b'"idempotentHint":1},"outputSchema":null},{"name":"ok2","annotations":[]}],'
            b'"nextCursor":null}'
        )
    )
    assert list(page.definitions) == ["ok", "ok2"]
    definition = page.definitions["ok"]
    assert definition == Definition(digest=definition.digest)
    assert page.next_cursor == ""


def test_an_answer_that_is_no_list_lists_nothing() -> None:
    for text in (b"", b"null", b"[]", b'{"tools":{}}', b'{"tools":null}'):
        page = read_tools_list(Raw(text))
        assert (page.definitions, page.next_cursor) == ({}, "")


def test_the_last_of_equal_names_counts() -> None:
    page = read_tools_list(
        Raw(b'{"tools":[{"name":"a","annotations":{"readOnlyHint":true}},{"name":"a"}]}')
    )
    assert page.definitions["a"].read_only is None
