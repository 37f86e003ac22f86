"""Error texts: whether a text that a tool returned as a success begins like an error message.

The patterns were written for texts of reference servers and public issues. Their hits and false alarms
are measured in tests/unit/wire/test_error_text.py.
"""

import re
from typing import Final

from turnlog.rules.pattern import any_of

LOOKED_AT: Final = 200
"""Characters at the start of a text that are searched."""
_SIGNS: Final = re.compile("[\u274c\u2716\u26d4\U0001f6ab]")
"""Symbols at the start of a line that mark a failure: a cross, a no-entry sign."""
_DECORATION: Final = " \t\r\n>*_#`\"'\ufeff"
_NO_VALUE: Final = r'(?!null|false|0\b|""|\[\s*\]|\{\s*\})'
_MEMBERS: Final = (
    r'\{\s*(?:"[^"\n]{0,64}"\s*:\s*(?:"[^"\n]{0,100}"|-?[\d.]+|true|false|null)\s*,\s*){0,4}'
)
_JSON: Final = re.compile(
    _MEMBERS + rf'(?:"error"\s*:\s*{_NO_VALUE}\S'
    r'|"(?:success|ok)"\s*:\s*false'
    r'|"isError"\s*:\s*true'
    r'|"status"\s*:\s*"(?:error|failed|failure)")'
)
_CODE: Final = (
    r"(?:ENOENT|EACCES|EPERM|EEXIST|EISDIR|ENOTDIR|ENOTEMPTY|EINVAL|EMFILE|ENOSPC|EPIPE|EROFS"
    r"|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH|EADDRINUSE|EAI_AGAIN|ENOTFOUND)"
)
_NAMED: Final = re.compile(
    # The class of an exception, an errno, a code of a database.
    r"(?:[A-Za-z_][\w.]{0,80}\.)?[A-Z]\w{0,60}(?:Error|Exception)\b(?: ?[\[(][^\n\])]{1,40}[\])])?:"
    rf"|{_CODE}(?:: |\b, )"
    r"|\[(?:Errno|WinError) -?\d+\]|ORA-\d{5}:|AADSTS\d+:|npm ERR!"
    r"|[Tt]hread '[^'\n]*' panicked|Traceback \(most recent call last\)"
    # The name of an argument.
    r"|[a-z_][\w.\[\]]{0,40} (?:is required|must (?:be|match) |is missing|(?:is )?not allowed)"
    r"|\[(?:\w+ )?(?:ERROR|Error|error)\]"
)
# Words before `error:` that make it a measured value, or a report.
_MEASURES: Final = r"(?:of|standard|squared|square|absolute|mean|margin|rounding|relative|last|no|zero|any|on|an|in)"
_WHAT: Final = (
    r"(?:file|path|directory|folder|repository|repo|branch|table|column|database|user|account|page"
    r"|element|entity|resource|document|collection|project|issue|channel|tool|command|module|package"
    r"|node|session|model|index|record|item|key|relation|place|route|endpoint|host|job|task|event)"
)
_SPOKEN: Final = re.compile(
    r"(?:"
    # Error: ..., Error opening project: ..., HTTP error! ..., MCP error -32602: ...
    r"(?:fatal |internal |server )?error(?: (?!handling|reporting|logging|tracking|recovery|correction)"
    r"(?:\w+ing\b|in\b|while\b|from\b|code\b)[^\n]{0,140}?)?(?::\*{0,2}(?:\s|$)|! )"
    rf"|(?:(?!{_MEASURES}\b)\w[\w./-]{{0,29}}:? ){{1,4}}error(?: ?[(\[]?-?\d{{1,6}}[)\]]?)?(?:: (?!none\b|0\b)|! )"
    r"|(?:sorry,? |the )?(?:an? )?(?:\w+ )?errors? (?:has |have )?occurred|something went wrong|internal server error|exception:"
    r"|(?:fatal|panic): |uncaught \w+|unhandled \w+(?: \w+)?[:( ]"
    # Failed to ..., Command failed: ..., Request failed with ...
    r"|failed (?:to \w+[^\n]|with |: )|failed: "
    r"|(?!(?:build|test|tests|check|checks|meeting|status|customer|incident)\b)(?:[\w./'-]{1,30} ){1,4}failed"
    r"(?: with (?:exit|status|code|error)|: (?!0\b|none)|\.?$)"
    # Unable to ..., Could not ..., Cannot connect to ...
    r"|(?:unable|was unable) to \w+|(?:could not|couldn't) (?!be (?:better|worse))\w+"
    r"|cannot (?!be |help )\w+|(?:can't|can not) (?:connect|read|find|open|access|delete|write|create|invoke|parse|resolve|load|execute"
    r"|get|set|remove|update|process|determine|locate|reach)\b"
    # Access denied ..., Unauthorized: ..., Authentication failed
    r"|(?:access|permission) (?:is |was )?denied(?:$|\.| [-\u2013(]|: '|: /)|operation not permitted"
    r"|unauthorized(?:$|:|\.)|forbidden(?:$|:|\.)|(?:you (?:are|do) )?not (?:authorized|have permission)\b(?! spending)"
    r"|no permission to|authentication (?:failed|required)|not authenticated"
    # Missing required parameter ..., Unknown tool ..., Invalid timezone: ...
    r"|missing (?:required )?(?:param|arg|field|option|prop|value|query|env|api)\w*\b"
    r"|unknown (?:tool|command|method|option|action|argument|parameter|function)\b"
    r"|invalid (?!dates? in|: )(?:[\w-]+ ){0,3}?(?:[\w-]+)(?:: |\.$| provided| value| format)"
    # ... not found, no such file ...
    rf"|(?:[^\s:]{{1,80}}:? ){{0,4}}{_WHAT}\b[^\n:]{{0,100}}? (?:not found|does(?: not|n't) exist|could not be found)(?:$|[.:,] |\.$| on |(?<!was not found)(?<=found) in )"
    # The whole text.
    r"|(?!not\b)[^\n]{1,80} (?:not found|does(?: not|n't) exist)[.!]?$|invalid [\w' -]{1,40}(?:\([^\n)]{1,60}\))?[.!]?$"
    r"|(?:[\w./-]+: ){1,3}(?:\d+: )?(?:[^\n:]{1,80}: )?(?:command not found|not found$|no such file or directory|permission denied|cannot access)"
    r"|(?:\w+ )?no such (?:file|table|column|tool|command|host|directory|method|key|user)|command not found"
    rf"|{_WHAT} [\"'][^\"'\n]{{1,80}}[\"'] does not exist"
    # HTTP
    r"|(?:(?:http(?:/[\d.]+)?|status(?: code)?:?|client error|server error) ?'?)?(?:4\d\d|5\d\d)[: ] ?(?:bad request|unauthorized"
    r"|payment required|forbidden|not found|method not allowed|conflict|gone|unprocessable|too many requests|internal server error"
    r"|bad gateway|service unavailable|gateway time-?out)\b'?(?:$|[.:] | for url)"
    r"|(?:[\w']{1,20} ){0,3}(?:request|status) failed with status"
    r"|(?:[\w']{1,20} ){1,5}returned (?:http )?(?:an? )?(?:status )?(?:code )?:? ?[45]\d\d\b"
    # Time and quota
    r"|(?:[\w']{1,20} ){1,4}timed out\b(?: after|$|[.:])|timeout (?:of )?\d+ ?m?s exceeded|connection (?:refused|reset|closed)\b"
    r"|(?:\w+ ){0,2}(?:rate limit|quota) (?:was )?(?:exceeded|reached)|you (?:have )?exceeded your"
    r")",
    re.IGNORECASE,
)


# Every match contains one of these. Most texts have none, and checking that takes a tenth of the time of
# the patterns above.
_GATE: Final = any_of(
    (
        "error|exception|failed|went wrong|[fp]a(?:tal|nic): |panicked|un(?:caught|handled) ",
        "unable to |could(?: not|n't) |can(?:not|'t| not) ",
        "is (?:required|missing)|must (?:be|match) |not (?:allowed|auth|have permission|permitted)",
        " denied|unauthorized|forbidden|no permission to|authentication required",
        "missing (?:required |param|arg|field|option|prop|value|query|env|api)",
        "unknown (?:tool|command|method|option|action|argument|parameter|function)|invalid ",
        "(?:not|be) found|n(?:ot|'t) exist|no such ",
        "[45][0-9][0-9][: ] ?(?:bad|unauth|pay|forb|not|meth|conf|gone|unproc|too|int|serv|gate)",
        "returned .*[45][0-9][0-9]|timed out|exceeded|quota|rate limit|connection (?:refused|reset|closed)",
        "errno|e(?:noent|acces|perm|exist|isdir|notdir|notempty|inval|mfile|nospc|pipe|rofs|addrinuse)",
        "e(?:connre|timedout|hostunreach|ai_again|notfound)|ora-[0-9]|aadsts|npm err|traceback",
        "❌|✖|⛔|🚫",
    )
)


def looks_like_error(text: str) -> bool:
    """Return whether a text begins like an error message."""
    start = text[:LOOKED_AT].lstrip(_DECORATION)
    if start.startswith("{"):
        return _JSON.match(start) is not None
    if not start or not _GATE(start.casefold().encode("utf-8", "surrogatepass")):
        return False
    return bool(_SIGNS.match(start) or _NAMED.match(start) or _SPOKEN.match(start))
