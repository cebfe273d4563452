"""Users, the accounts that they are billed to, clusters, and words that the owner wants out.

A name that is a common word too (``max``, ``train``) is replaced only where a user's name must stand: in a home path,
after ``user=``, in a column of its own. Names that every machine has (``root``, ``ubuntu``) tell nothing and stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trackside.bundle.redact.hosts import FILES
from trackside.bundle.redact.kind import BEFORE, Kind, Trace, word
from trackside.bundle.redact.literal import any_of, numbered
from trackside.bundle.redact.sieve import Look, Sign, literal, look

_NAME = r"([A-Za-z_][A-Za-z0-9_.-]{0,63})"
_PATHS = re.compile(
    # Of many users some sites sort the folders by their first letter.
    rf"(?:/(?:home|homes|Users|users|user|people)|[A-Za-z]:\\{{1,2}}Users\\?)[/\\](?:[a-z]/)?{_NAME}"
)
_LOGIN = r"([a-z][a-z0-9_]{2,15}|[a-z]{1,12}\.[a-z]{3,15})(?![\w.-])"
_MAYBE = (
    # ``pypi.org/project/name`` is a page.
    re.compile(
        rf"(?<!\.[a-z]{{2}})(?<!\.[a-z]{{3}})(?<!\.example)/(?:scratch|work|works|project|projects|proj|storage|data/users)/(?:[a-z]/)?{_LOGIN}"
    ),
    re.compile(rf"(?<![\w/.~])~{_LOGIN}(?=/)"),
)
"""Folders that are often a user's."""
_HOMES = re.compile(
    rf"/{_NAME}/(?:\.(?:local|cache|conda|ssh|config|bashrc|profile|vscode-server|netrc|keras|triton)|(?:mini|ana)conda\d?)\b"
)
"""Whoever's folder has these in it."""
_SAYS = (
    re.compile(rf"\bHOME=(?:/[\w.-]+){{1,8}}/{_NAME}(?=[\s\"':;]|$)", re.MULTILINE | re.ASCII),
    re.compile(rf"\b(?:UserId|GroupId)={_NAME}\("),
    re.compile(rf"\b(?:USER|LOGNAME|USERNAME|SLURM_JOB_USER|SUDO_USER)={_NAME}"),
    re.compile(rf"\b(?:User|user|job_user|username|user_name)=[\"']?{_NAME}"),
    re.compile(rf"[\"'](?:user|user_name|username|job_user|owner|group_name|group)[\"'][ \t]*:[ \t]*[\"']{_NAME}[\"']"),
    re.compile(rf"\b[ug]id=\d+\({_NAME}\)"),
    re.compile(rf"logged in as:? (?:\x1b\[[0-9;]{{0,9}}m)?{_NAME}"),
    re.compile(r"://([A-Za-z_][\w.-]{0,18})(?=(?::[^/\s\"'<>]{1,200})?@)"),
    re.compile(rf"(?:^|[\s\[(=]){_NAME}@[A-Za-z][\w-]{{1,60}}(?=:[~/]|[ ~]*[$#\]])", re.MULTILINE | re.ASCII),
    re.compile(rf"curl\b[^\n]{{0,200}}? -u[ =]?[\"']?{_NAME}(?=:)"),
    re.compile(rf"\bAAAA[A-Za-z0-9+/=]{{20,1000}} {_NAME}(?=@)"),
    re.compile(rf"\blogin {_NAME}(?= password)"),
    re.compile(rf"\bssh (?:-\S+ ){{0,3}}{_NAME}(?=@)"),
    re.compile(
        r"\b(?:[Oo]wner|OWNER|[Uu]ser(?:name)?|[Aa]uthor|[Cc]ommitter|[Ss]ubmitter|Signed-off-by|[Cc]o-[Aa]uthored-[Bb]y)"
        r"[ \t]{0,8}[:=][ \t]{0,8}"
        r"([A-Z][\w'-]{1,30}(?: [A-Z][\w'.-]{0,30}){1,3}|[a-z][a-z0-9_.-]{1,30}(?=[ \t]*(?:[\n,;(<|]|$)))",
    ),
    re.compile(
        r"\b(?:[Ss]ubmitted|[Oo]wned|[Rr]equested) by(?: user)? "
        r"([a-z][a-z0-9_.-]{1,30}|[A-Z][\w'-]{1,30} [A-Z][\w'-]{1,30})"
    ),
)
_ACCOUNTS = (
    re.compile(rf"\b(?:Account|SLURM_JOB_ACCOUNT|WCKey)=\*?{_NAME}"),
    re.compile(rf"[\"'](?:account|wckey|organization)[\"'][ \t]*:[ \t]*[\"']{_NAME}[\"']"),
)
NEUTRAL = frozenset(
    """
opt usr local share apps app software soft lib bin var etc tmp pub envs env mnt nfs gpfs lustre fsx workspace content
admin administrator all anonymous app appuser azureuser batch centos cluster common conda daemon data debian debug
default docker ec2-user git gitlab-ci-token false fedora guest home jovyan linux login munge mysql n/a nobody none
normal null nvidia oauth2 opc postgres project projects public ray redis rocky root runner scratch shared slurm sshd
standard systemd test token true ubuntu unknown user users vagrant vscode wandb work www-data x-access-token
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Names that tell nobody apart."""
_WORDS = frozenset(
    """
ai all any april art august avg base batch bill cpu cuda data dataset dawn dean debug dev drew earl end epoch err
error eval false file gene gpu grace grant guy hope host id info job jobs joy june kernel key lab lance log logs loss
main mark mat max may mean memory miles min ml model models name neil net nick node nodes none norm off on out pat
path pierce prod python rank ray rich rob rod ron rose roy run runs sandy size skip spike start step steps stew stop
sue sum summer tad task team test time torch train trainer training trey true type value van wade ward warning web
will
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Words that stand in many logs: as a user's name they are replaced only where a user must stand."""
_FOLDERS = frozenset(
    """
apps archive audio backup bench benchmark benchmarks bert build cache caches checkpoint checkpoints ckpt ckpts code
codes config configs container containers corpora corpus datasets deepspeed deploy devel dist downloads dump
evaluation experiment experiments fineweb gpt group groups images imagenet install laion libs llama llm megatron
miniconda misc mlperf modules nemo output outputs pile pretrain pretraining proj pytorch release repo repos research
results scripts singularity site source sources spack src staging storage system temp tests text tokenized tokenizer
tokenizers tools transformers tuning venv venvs video vision volumes weights wheels wiki workdir
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Folders that are no user's."""
_STATES = (
    "R|PD|CG|CD|CA|F|TO|NF|OOM|RUNNING|PENDING|COMPLETING|COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|OUT_OF_MEM\\w*"
    "|REQUEUED|PREEMPTED"
)
_PLACES = (
    (r"(?:(?<=/home/)|(?<=/homes/)|(?<=/Users/)|(?<=/users/)|(?<=/people/))", r"(?![\w-])"),
    (
        r"(?:(?<=[Uu]ser=)|(?<=USER=)|(?<=LOGNAME=)|(?<=Id=)|(?<=Account=)|(?<=user\":\")|(?<=user\": \"))",
        r"(?![\w-])",
    ),
    (r"(?<=\|)", r"(?=\|)"),
    # A row of a table by Slurm: a job's id, and its state on either side.
    (r"(?<=  )", rf"(?=[ \t]+(?:[\w.:-]+[ \t]+){{0,4}}(?:{_STATES})[ +\n])"),
)
"""(before, after) where a name of a user stands whatever else it may mean."""
_SPELLED = (
    "/home/", "/homes/", "/Users/", "/users/", "/people/", "User=", "user=", "USER=", "LOGNAME=", "UserId=", "Account=",
    'user":"', 'user": "',
)  # fmt: skip
"""The same as texts, to look for what was overlooked."""


class Names(Kind):
    """Names of one kind, told by records and by what stands before them."""

    def __init__(
        self,
        name: str,
        word: str,
        says: Iterable[re.Pattern[str]],
        maybe: Iterable[re.Pattern[str]] = (),
    ) -> None:
        super().__init__()
        self.name, self._word, self._says = name, word, tuple(says)
        self._maybe = tuple(maybe)
        self._folders: set[str] = set()
        """Of those found the ones that only a folder tells: they are replaced in paths alone."""
        self._sure: set[str] = set()
        self._spelled: dict[str, str] = {}
        """Thing in small letters -> its name."""
        self._patterns: tuple[re.Pattern[str], ...] = ()

    @property
    def looks(self) -> Sequence[Look]:
        return [*(look(each, self.add) for each in self._says), *(look(each, self._add_folder) for each in self._maybe)]

    def add(self, text: str) -> None:
        """One that is known."""
        text = text.strip().rstrip(".-")
        if len(text) > 1 and text.lower() not in NEUTRAL and not text.isdecimal():
            self._found.add(text)
            self._sure.add(text)

    def _add_folder(self, text: str) -> None:
        """One that is a folder's name where users often have theirs."""
        stem = text.rstrip("0123456789_").lower()
        is_word = stem in NEUTRAL or stem in _WORDS or stem in _FOLDERS or stem + "s" in _FOLDERS
        if not is_word and text not in NEUTRAL and text.rpartition(".")[2] not in FILES:
            self._found.add(text)
            self._folders.add(text)

    def settle(self) -> None:
        self._folders -= self._sure
        listed = sorted(self._found)
        wholes = {each[:_SHORTENED]: each for each in reversed(listed) if len(each) > _SHORTENED}
        self.names = numbered((each for each in listed if each not in wholes), self._word, self._found)
        self.names |= {each: self.names[whole] for each, whole in wholes.items() if each in self._found}
        self._spelled = {each.lower(): name for each, name in reversed(self.names.items())}
        common = {each for each in self._found if _is_common(each)}
        common |= self._folders
        short = {each for each in self._found - common if len(each) < ANY_SPELLING}
        patterns = [
            any_of(self._found - common - short, BEFORE, r"(?![A-Za-z])", re.IGNORECASE | re.ASCII),
            any_of(short, BEFORE, r"(?![A-Za-z])"),
            any_of(self._folders, r"(?<=[/\\~])", r"(?![\w-])"),
            *(any_of(common, before, after, re.MULTILINE) for before, after in _PLACES),
        ]
        self._patterns = tuple(each for each in patterns if each is not None)

    def replaced(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(self._named, text)
        return text

    def _named(self, match: re.Match[str]) -> str:
        return self.names.get(match[0]) or self._spelled[match[0].lower()]

    def signs(self) -> Iterable[Sign]:
        for name in self.names:
            if name in self._folders:
                yield Sign(rb"[/\\~|=:\" ]" + literal(name).regex)
            elif _is_common(name):
                yield Sign(rb"(?:/|\||[=:]\"?|: \"|  )" + literal(name).regex)
            else:
                yield word(name, caseless=True)

    def traces(self) -> Iterable[Trace]:
        """A common word only where it is a name."""
        for text, name in self.names.items():
            if text in self._folders:
                yield Trace("/" + text, name, "", r"(?![\w-])", exact=True)
                continue
            if not _is_common(text):
                yield Trace(text, name, exact=len(text) < ANY_SPELLING)
                continue
            for place in _SPELLED:
                yield Trace(place + text, name, "", r"(?![\w-])", exact=True)


ANY_SPELLING = 4
"""Names from this length on are replaced in capitals and small letters alike."""
_SHORTENED = 8
"""Letters that ``squeue`` and ``sacct`` print of a longer name."""


def _is_common(name: str) -> bool:
    return name.lower() in _WORDS or len(name) < 3


def users() -> Names:
    """Users and their groups."""
    return Names("user names", "user", (_PATHS, _HOMES, *_SAYS), maybe=_MAYBE)


def accounts() -> Names:
    """Accounts that jobs are billed to."""
    return Names("accounts", "account", _ACCOUNTS)


def clusters() -> Names:
    """Slurm's clusters."""
    says = (
        re.compile(rf"\b(?:ClusterName|SLURM_CLUSTER_NAME)[ \t]?=[ \t]?{_NAME}"),
        re.compile(rf"[\"']cluster(?:_name)?[\"'][ \t]*:[ \t]*[\"']{_NAME}[\"']"),
    )
    return Names("clusters", "cluster", says)


class Words(Kind):
    """What the owner named, in any spelling and within words."""

    name = "words given"

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__()
        self.names = {
            each.lower(): f"word-{n}" for n, each in enumerate(sorted({w.strip() for w in words if w.strip()}), 1)
        }
        self._any = any_of(self.names, flags=re.IGNORECASE)

    def replaced(self, text: str) -> str:
        return text if self._any is None else self._any.sub(lambda match: self.names[match[0].lower()], text)

    def signs(self) -> Iterable[Sign]:
        # Beyond ASCII no matcher knows what is the same letter: then every line is looked at.
        return (literal(each, caseless=True) if each.isascii() else Sign(rb"[^\n]") for each in self.names)

    def traces(self) -> Iterable[Trace]:
        for text, name in self.names.items():
            spelled = {text} if text.isascii() else {text, text.upper(), text.title(), text.capitalize()}
            yield from (Trace(each, name, "", "") for each in sorted(spelled))
