"""What to do about a model, data set or file that could not be loaded, as the message of the error shows it."""

from __future__ import annotations

import re

from trackside.evidence import Value, derived
from trackside.finding import Action, Sentence, action
from trackside.remedies import CHECK_PATH, CHECK_PATH_ON_NODES, CHECK_RELATIVE_PATH

_HUB = r"https?://huggingface\.co"
_REPOSITORY = r"([\w.-]{1,96}/[\w.-]{0,95}[\w-])"
GATED = re.compile(rf"(?=.*(?:gated repo|is restricted)).*?{_HUB}/(?:datasets/)?{_REPOSITORY}", re.DOTALL)
REFUSED = re.compile(r"\b(?:HTTP Error )?(40[13])(?:: Forbidden| Client Error|: Unauthorized| Forbidden| Unauthorized)")
NOT_THERE = re.compile(r"\bHTTP Error 404\b|\b404 Client Error\b|\b404:? Not Found")
_URL = re.compile(r"\bfor url:? (https?://\S{1,300}?)[.,;]?(?=\s|$)")
UNREACHED = re.compile(
    r"(?:couldn't connect to|Couldn't reach|Cannot connect to host|Failed to connect to|Unable to connect to) "
    r"['\"]?(?:https?://)?([\w.-]+\.\w+)"
    r"|host='([\w.-]+)', port=\d+\): Max retries exceeded"
)
UNKNOWN_NAME = re.compile(
    r"(\S{1,200}) is not a local folder and is not a valid model identifier"
    r"|Can't load (?:the )?\w[\w ]{1,30} for '([^'\n]{1,200})'"
    r"|Repo id must be in the form .{1,80}?: '([^'\n]{1,200})'"
    r"|Incorrect path_or_model_id: '([^'\n]{1,200})'"
)
UNOPENED = re.compile(r"[Cc]ould not open (?:file )?['\"]?(/[^\s'\":]{1,200})['\"]?: No such file")

REQUEST_ACCESS = Sentence(
    "request access at https://huggingface.co/{repository}, run with a token of the account that has it (HF_TOKEN), "
    "and resubmit"
)
CHECK_PERMISSION = Sentence(
    "check that the job's account or token may read {what}, and resubmit: the server answered and refused (HTTP {code})"
)
CORRECT_ADDRESS = Sentence(
    "correct the address of {what}, and resubmit: the server answered that it has none (HTTP {code})"
)
LOAD_ELSEWHERE = Sentence(
    "the job could not reach {host}: load the files on a machine that can, into a folder that the job's nodes read, "
    "give the job the path of that folder, and resubmit"
)
CHECK_NAME = Sentence(
    "correct the name {name}, and resubmit: the job found neither a local folder of that name with the files nor a "
    "repository on huggingface.co that its token, if any, may read"
)


def repository_remedy(text: str, message: Value, nodes: int) -> Action | None:
    """What to do, by the text of an error and its causes; None if it shows no remedy. ``nodes``: of the job."""
    if (match := GATED.search(text)) is not None:
        return action(REQUEST_ACCESS, repository=derived(match[1], message))
    if (match := UNREACHED.search(text)) is not None:
        return action(LOAD_ELSEWHERE, host=derived(match[1] or match[2], message))
    if (match := UNKNOWN_NAME.search(text)) is not None:
        return _check_name(next(filter(None, match.groups())), message, nodes)
    url = _URL.search(text)
    what = derived(url[1] if url is not None else "the file", message)
    if (match := REFUSED.search(text)) is not None:
        return action(CHECK_PERMISSION, what=what, code=derived(int(match[1]), message))
    if NOT_THERE.search(text) is not None:
        return action(CORRECT_ADDRESS, what=what, code=derived(404, message))
    return None if (match := UNOPENED.search(text)) is None else check_path(match[1], message, nodes)


def check_path(path: str, message: Value, nodes: int) -> Action:
    """Check that a path exists; an absolute one on every node of the job. ``nodes``: their number."""
    on_nodes = CHECK_PATH_ON_NODES if nodes > 1 else CHECK_PATH
    return action(on_nodes if path.startswith("/") else CHECK_RELATIVE_PATH, path=derived(path, message))


def _check_name(name: str, message: Value, nodes: int) -> Action:
    """A path is to exist; any other name may be that of a repository, too."""
    is_path = name.startswith(("/", ".")) or name.count("/") > 1
    return check_path(name, message, nodes) if is_path else action(CHECK_NAME, name=derived(name, message))
